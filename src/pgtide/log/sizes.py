"""How much memory rows take, and where to cut them so that no stretch takes more than it may.

An average says nothing here: one row may hold a document of 100 MB that compresses to some
kilobytes, beside a hundred thousand small ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Whatever makes rows differ in size; the other columns take about _FIXED_BYTES together.
VALUES = ["before", "after", "unchanged", "payload"]
_FIXED_BYTES = 128
_OFFSET_BYTES = 4  # Arrow needs them for each value, NULL included

Sizes = npt.NDArray[np.int64]


def row_sizes(values: pa.Table) -> Sizes:
    """The bytes of each row, from at least the columns ``VALUES``."""
    sizes = np.full(values.num_rows, _FIXED_BYTES, np.int64)
    for name in VALUES:
        begin = 0
        for chunk in values.column(name).chunks:
            sizes[begin : begin + len(chunk)] += value_sizes(chunk)
            begin += len(chunk)
    return sizes


def cut(sizes: Sizes, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Stretches (begin, end) within both limits; a row that is larger has one to itself."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        limit = most_bytes + (ends[begin - 1] if begin else 0)
        fitting = int(np.searchsorted(ends, limit, side="right"))
        end = max(begin + 1, min(fitting, begin + most_rows))
        yield begin, end
        begin = end


def value_sizes(chunk: pa.Array[Any]) -> Sizes:
    """The bytes of each element of a text, a list of texts or a list of numbers."""
    if not pa.types.is_list(chunk.type):
        return np.diff(_offsets(chunk))
    bounds = _offsets(chunk)
    elements = (bounds[1:] - bounds[:-1]) * _OFFSET_BYTES
    values = chunk.values  # type: ignore[attr-defined]
    if not pa.types.is_string(values.type) or len(values) == 0:
        return elements
    texts = _offsets(values)
    return elements + texts[bounds[1:]] - texts[bounds[:-1]]


def _offsets(chunk: pa.Array[Any]) -> Sizes:
    """Where each element begins, and the last one ends; their buffer may belong to a slice."""
    buffer: Any = chunk.buffers()[1]
    if buffer is None:
        return np.zeros(len(chunk) + 1, np.int64)
    offsets: npt.NDArray[np.int32] = np.frombuffer(buffer, np.int32)
    return offsets[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64)
