"""Durations, sizes and times of day as people write them: ``500ms``, ``16MB``, ``22:00-06:00``.

A number without a unit is refused: whoever writes ``flush_interval: 500`` means
milliseconds, and would get more than eight minutes.
"""

from __future__ import annotations

import re
from datetime import time

from pgtide.errors import ConfigError

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Powers of 1024 for both spellings, as in Postgres's own settings.
BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE)


def parse_duration(text: object) -> float:
    """``"500ms"`` to 0.5 seconds."""
    amount, unit = _split(text)
    if unit not in SECONDS:
        raise ConfigError(
            f"{_shown(text)} is not a duration",
            hint="write a number and one of ms, s, m, h, d, for example 500ms",
        )
    # Rounded because 0.001 has no exact binary form: 50ms is 0.05, not 0.05000000000000001.
    return round(amount * SECONDS[unit], 9)


def parse_size(text: object) -> int:
    """``"16MB"`` to 16777216 bytes."""
    amount, unit = _split(text)
    if unit not in BYTES:
        raise ConfigError(
            f"{_shown(text)} is not a size",
            hint="write a number and one of B, kB, MB, GB, for example 16MB",
        )
    return int(amount * BYTES[unit])


def parse_window(text: str) -> tuple[time, time]:
    """``"22:00-06:00"`` to its two times of day; the second may be of the next day."""
    begin, _, end = text.partition("-")
    try:
        return time.fromisoformat(begin.strip()), time.fromisoformat(end.strip())
    except ValueError:
        raise ConfigError(
            f"{_shown(text)} is not a time of day from-to",
            hint="write two times, for example 22:00-06:00",
        ) from None


def _split(text: object) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    return (float(match[1]), match[2].lower()) if match else (0.0, "")


def _shown(text: object) -> str:
    return repr(text) if isinstance(text, str | int | float) else f"a {type(text).__name__}"
