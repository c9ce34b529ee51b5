"""Lists of texts by key, compiled, without the GIL: which rows moved, which are the last of theirs.

A row is a list, its key are some of its texts, byte by byte; NULL is equal to NULL. Rows of several
layouts come together: a layout says where in a row its key is. Rows need not be in order.
"""

# Types below are numba's: its integers are not Python's, and it compiles what it is given.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgtide.wal.memory import compiled, get_field, inlined, load8, load32, load64, store8, store64

Numbers: TypeAlias = npt.NDArray[np.int64]
Place: TypeAlias = tuple[Numbers, Numbers]
"""Where rows stand: two numbers of each, the first one weighs more."""

_PRIME = np.int64(0x100000001B3)  # of the hash by Fowler, Noll and Vo
_SPREAD = np.int64(-0x61C8864680B583EB)  # the golden ratio, as hashes are made by multiplication
_NULL, _END = 0x1FF, 0x100  # what no byte is
_FREE = -1  # a cell without a key
_LISTS, _TEXTS, _DATA, _VALID, _FIRST = range(5)  # of a view


@dataclass(frozen=True)
class KeyPlaces:
    """The numbers of the key's columns, by layout: those of one behind those of another."""

    starts: Numbers
    places: Numbers

    @classmethod
    def of(cls, keys: Sequence[Sequence[int]]) -> KeyPlaces:
        starts = np.cumsum([0, *map(len, keys)], dtype=np.int64)
        return cls(starts, np.array([place for key in keys for place in key], np.int64))


@dataclass(frozen=True)
class Keyed:
    """Rows, and what tells them apart: keys are compared within a group."""

    rows: pa.ListArray[Any]  # none is NULL, and each has all columns of its layout
    layouts: Numbers
    groups: Numbers
    keys: KeyPlaces


def hashes(keyed: Keyed) -> Numbers:
    """A number for the group and key of each row."""
    found = np.empty(len(keyed.rows), np.int64)
    view, keys = _view(keyed.rows), keyed.keys
    _hashes(
        len(found), view.ctypes.data, keyed.layouts.ctypes.data, keyed.groups.ctypes.data,
        keys.starts.ctypes.data, keys.places.ctypes.data, found.ctypes.data,
    )  # fmt: skip
    return found


def newest(keyed: Keyed, hashes: Numbers, first: Place, last: Place) -> tuple[Numbers, Numbers]:
    """Of each key the number of the row that is first by ``first``, and last by ``last``."""
    rows = len(keyed.rows)
    cells = np.full(1 << (2 * rows).bit_length(), _FREE, np.int64)
    firsts, lasts = np.empty(rows, np.int64), np.empty(rows, np.int64)
    view, keys = _view(keyed.rows), keyed.keys
    count = _newest(
        rows, view.ctypes.data, keyed.layouts.ctypes.data, keyed.groups.ctypes.data,
        keys.starts.ctypes.data, keys.places.ctypes.data, hashes.ctypes.data,
        first[0].ctypes.data, first[1].ctypes.data, last[0].ctypes.data, last[1].ctypes.data,
        cells.ctypes.data, len(cells) - 1, firsts.ctypes.data, lasts.ctypes.data,
    )  # fmt: skip
    return firsts[:count], lasts[:count]


def moved(
    old: pa.ListArray[Any], new: pa.ListArray[Any], layouts: Numbers, keys: KeyPlaces
) -> npt.NDArray[np.bool_]:
    """Of pairs of rows, whether they have different keys."""
    found = np.empty(len(old), np.bool_)
    before, after = _view(old), _view(new)
    _moved(
        len(old), before.ctypes.data, after.ctypes.data, layouts.ctypes.data,
        keys.starts.ctypes.data, keys.places.ctypes.data, found.ctypes.data,
    )  # fmt: skip
    return found


def _view(rows: pa.ListArray[Any]) -> Numbers:
    """Where lists, texts and their bytes lie, and a bit for each text; 0 where there is none."""
    texts: Any = rows.values  # all of them, also where the rows are a slice
    valid, ends, data = texts.buffers()
    lists: Any = rows.buffers()[1]
    return np.array(
        [
            0 if lists is None else lists.address + 4 * rows.offset,
            0 if ends is None else ends.address + 4 * texts.offset,
            0 if data is None else data.address,
            0 if valid is None else valid.address,
            texts.offset,
        ],
        np.int64,
    )


@inlined
def _is_null(view: int, text: int) -> bool:
    bit = get_field(view, _FIRST) + text
    valid = get_field(view, _VALID)
    return valid != 0 and (load8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0


@inlined
def _text(view: int, row: int, column: int) -> int:
    """The number of a value among all texts."""
    return load32(get_field(view, _LISTS) + 4 * row) + column


@compiled
def _hash(view: int, row: int, starts: int, places: int, layout: int, group: int) -> int:
    mixed = (group + 1) * _SPREAD
    for key in range(get_field(starts, layout), get_field(starts, layout + 1)):
        text = _text(view, row, get_field(places, key))
        if _is_null(view, text):
            mixed = (mixed ^ _NULL) * _PRIME
            continue
        ends = get_field(view, _TEXTS) + 4 * text
        data = get_field(view, _DATA)
        for at in range(data + load32(ends), data + load32(ends + 4)):
            mixed = (mixed ^ load8(at)) * _PRIME
        mixed = (mixed ^ _END) * _PRIME
    mixed = (mixed ^ (mixed >> 29)) * _SPREAD
    return mixed ^ (mixed >> 32)


@compiled
def _same(
    view: int, row: int, layout: int, other_view: int, other: int, other_layout: int,
    starts: int, places: int,
) -> bool:  # fmt: skip
    """Whether two rows have the same key; layouts of one group have keys of the same columns."""
    begin, other_begin = get_field(starts, layout), get_field(starts, other_layout)
    for key in range(get_field(starts, layout + 1) - begin):
        text = _text(view, row, get_field(places, begin + key))
        other_text = _text(other_view, other, get_field(places, other_begin + key))
        if _is_null(view, text) or _is_null(other_view, other_text):
            if _is_null(view, text) != _is_null(other_view, other_text):
                return False
            continue
        ends = get_field(view, _TEXTS) + 4 * text
        other_ends = get_field(other_view, _TEXTS) + 4 * other_text
        size = load32(ends + 4) - load32(ends)
        if size != load32(other_ends + 4) - load32(other_ends):
            return False
        at = get_field(view, _DATA) + load32(ends)
        other_at = get_field(other_view, _DATA) + load32(other_ends)
        for byte in range(size):
            if load8(at + byte) != load8(other_at + byte):
                return False
    return True


@compiled
def _hashes(
    rows: int, view: int, layouts: int, groups: int, starts: int, places: int, out: int
) -> None:
    for row in range(rows):
        layout, group = get_field(layouts, row), get_field(groups, row)
        store64(out + 8 * row, _hash(view, row, starts, places, layout, group))


@compiled
def _moved(rows: int, old: int, new: int, layouts: int, starts: int, places: int, out: int) -> None:
    for row in range(rows):
        layout = get_field(layouts, row)
        same = _same(old, row, layout, new, row, layout, starts, places)
        store8(out + row, 0 if same else 1)


@inlined
def _before(high: int, low: int, row: int, other: int) -> bool:
    """Whether a row stands before another one."""
    mine, theirs = load64(high + 8 * row), load64(high + 8 * other)
    return mine < theirs or (mine == theirs and load64(low + 8 * row) < load64(low + 8 * other))


@compiled
def _newest(
    rows: int, view: int, layouts: int, groups: int, starts: int, places: int, hashes: int,
    first_high: int, first_low: int, last_high: int, last_low: int,
    cells: int, mask: int, firsts: int, lasts: int,
) -> int:  # fmt: skip
    """Fill ``firsts`` and ``lasts``; how many keys there are."""
    count = 0
    for row in range(rows):
        layout, group, mixed = (
            get_field(layouts, row), get_field(groups, row), get_field(hashes, row),
        )  # fmt: skip
        cell = mixed & mask
        while True:
            known = get_field(cells, cell)
            if known == _FREE:
                store64(cells + 8 * cell, count)
                store64(firsts + 8 * count, row)
                store64(lasts + 8 * count, row)
                count += 1
                break
            other = get_field(lasts, known)
            if (
                get_field(hashes, other) == mixed
                and get_field(groups, other) == group
                and _same(view, row, layout, view, other, get_field(layouts, other), starts, places)
            ):
                if _before(last_high, last_low, other, row):
                    store64(lasts + 8 * known, row)
                if _before(first_high, first_low, row, get_field(firsts, known)):
                    store64(firsts + 8 * known, row)
                break
            cell = (cell + 1) & mask
    return count
