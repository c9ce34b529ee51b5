"""Lines for COPY: what is written is read back as it was, wherever values lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtide.log.schema import TEXT_LIST
from pgtide.wal.copy_lines import copy_lines
from pgtide.wal.copy_text import parse_lines
from tests.wal.test_copy_text import Row, texts


def lines(rows: list[Row], begin: int = 0) -> bytes:
    """The lines of some rows, of which the first ones lie before those that are meant."""
    array: Any = pa.array(rows, TEXT_LIST)
    return bytes(copy_lines(array.slice(begin)))


# The first use of all characters builds a table of them.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(st.none() | texts, min_size=n, max_size=n))
    ),
    st.integers(0, 3),
)
def test_what_is_written_is_read(rows: list[Row], begin: int) -> None:
    width = len(rows[0]) if rows else 3
    text = np.frombuffer(lines(rows, min(begin, len(rows))), np.uint8)
    wanted = rows[begin:]
    assert parse_lines(text, len(wanted), width).to_pylist() == wanted


def test_values_that_end_where_memory_does() -> None:
    """Eight bytes are read at a time, not past the last value; and a part of a part is right."""
    for size in range(20):
        for special in range(size):
            value = "x" * special + "\t" + "x" * (size - special)
            data = value.encode()
            ends = pa.py_buffer(np.array([0, len(data)], np.int32).tobytes())
            text = pa.StringArray.from_buffers(1, ends, pa.py_buffer(data))
            row: Any = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)
            assert bytes(copy_lines(row)) == value.replace("\t", "\\t").encode() + b"\n"
    every: Any = pa.array([[None, "a"], ["b", "\\N"], [None, "c\r\n"]], TEXT_LIST)
    assert bytes(copy_lines(every.slice(1).slice(1))) == b"\\N\tc\\r\\n\n"


def test_nothing() -> None:
    assert lines([]) == b""
    assert lines([[], []]) == b"\n\n"
    assert lines([[None]]) == b"\\N\n"
    assert lines([[""]]) == b"\n"
