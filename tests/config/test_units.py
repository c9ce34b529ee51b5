from __future__ import annotations

import pytest

from pgtide.config.units import parse_duration, parse_size
from pgtide.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("50ms", 0.05),
        ("1s", 1.0),
        ("1.5 s", 1.5),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("7d", 604800.0),
        (" 7D ", 604800.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("16MB", 16 << 20), ("64kB", 65536), ("1 GiB", 1 << 30), ("12B", 12)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "-5s", "5 parsecs", "1e3s", "٥s", "1h30m", 500, 0.5, None, ["1s"], True]
)
def test_not_a_duration(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a duration") as caught:
        parse_duration(text)
    assert "500ms" in caught.value.hint


@pytest.mark.parametrize("text", ["", "16", "16TB!", "-1MB", 16, None, {}])
def test_not_a_size(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a size") as caught:
        parse_size(text)
    assert "16MB" in caught.value.hint
