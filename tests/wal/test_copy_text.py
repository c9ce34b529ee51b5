"""COPY text format: what Postgres writes comes back as it was, anything else is refused."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtide.errors import InvalidText, ProtocolError
from pgtide.log.schema import TEXT_LIST
from pgtide.wal.copy_text import parse_lines

Row = list[str | None]

_ESCAPES = {8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 92: "\\"}


def written(rows: list[Row]) -> bytes:
    """Rows as Postgres writes them: CopyAttributeOutText of copyto.c."""
    lines = ["\t".join("\\N" if v is None else v.translate(_TABLE) for v in row) for row in rows]
    return "".join(f"{line}\n" for line in lines).encode()


_TABLE = {code: f"\\{letter}" for code, letter in _ESCAPES.items()}


def parse(text: bytes, width: int, lines: int | None = None) -> list[Row]:
    array = np.frombuffer(text, np.uint8)
    rows = parse_lines(array, text.count(b"\n") if lines is None else lines, width)
    rows.validate(full=True)
    assert rows.type == TEXT_LIST
    found: Any = rows.to_pylist()
    return list(found)


texts = st.text(
    st.one_of(st.characters(codec="utf-8", exclude_characters="\0"), st.sampled_from("\t\n\r\\N"))
)


# The first use of all characters builds a table of them.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.integers(0, 9).flatmap(
        lambda n: st.lists(st.lists(st.none() | texts, min_size=n, max_size=n))
    )
)
def test_what_is_written_is_read(rows: list[Row]) -> None:
    width = len(rows[0]) if rows else 3
    assert parse(written(rows), width) == rows


def test_fields_of_every_length_at_every_place() -> None:
    rows: list[Row] = [
        ["a" * before, "\\" * size, "é" * after, None]
        for before in range(10)
        for size in range(10)
        for after in range(10)
    ]
    assert parse(written(rows), 4) == rows


def test_no_lines() -> None:
    assert parse(b"", 3) == []
    assert parse(b"", 0) == []


def test_a_table_without_columns() -> None:
    assert parse(b"\n\n\n", 0) == [[], [], []]


def test_null_and_the_text_that_looks_like_it() -> None:
    assert parse(b"\\N\t\\\\N\t\tN\n", 4) == [[None, "\\N", "", "N"]]


def test_a_wide_row() -> None:
    row: Row = [None if n % 3 == 0 else str(n) for n in range(1600)]
    assert parse(written([row, row]), 1600) == [row, row]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        (b"a", 1, 1),  # no newline
        (b"a\\", 1, 1),
        (b"a\tb\n", 1, 1),
        (b"a\tb\n", 3, 1),
        (b"a\n", 0, 1),
        (b"\\N\n", 0, 1),
        (b"\t\n", 0, 1),
        (b"\\Na\n", 1, 1),
        (b"a\\N\n", 1, 1),
        (b"\\N\\N\n", 1, 1),
        (b"\\.\n", 1, 1),
        (b"\\x41\n", 1, 1),
        (b"\\101\n", 1, 1),
        (b"a\nb\n", 1, 1),  # more lines than said
        (b"a\n", 1, 2),
        (b"", 1, 1),
        (b"\n", 1 << 40, 1),
    ],
)
def test_malformed_lines_are_refused(text: bytes, width: int, lines: int) -> None:
    with pytest.raises(ProtocolError, match="malformed line"):
        parse(text, width, lines)


@pytest.mark.parametrize("text", [b"\xff\n", b"abcdefgh\xc3\n", b"\xc3\t\xa9\n", b"\xed\xa0\x80\n"])
def test_what_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidText):
        parse(text, text.count(b"\t") + 1)


def test_changed_bytes_are_read_or_refused() -> None:
    generator = random.Random(7)
    good = written([["one", None, "drei\t"], ["", "\\", "ß" * 9]] * 3)
    for at in range(len(good)):
        for value in {0, 9, 10, 92, 78, 0x80, 0xFF, generator.randrange(256)}:
            changed = good[:at] + bytes([value]) + good[at + 1 :]
            with suppress(ProtocolError):
                parse(changed, 3)


@given(st.binary(max_size=60), st.integers(0, 4), st.integers(0, 5))
def test_random_bytes_are_read_or_refused(text: bytes, width: int, lines: int) -> None:
    with suppress(ProtocolError):
        parse(text, width, lines)
