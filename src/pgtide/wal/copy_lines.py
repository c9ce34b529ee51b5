"""Lists of texts in Arrow → COPY text format as bytes: a line each, compiled, without the GIL.

The other way round than ``copy_text``: fields between tabs, ``\\N`` for NULL, and a backslash
before what COPY would take for something else. Eight bytes are copied at a time.

PostgreSQL manual, "COPY", section "Text Format".
"""

# Types below are numba's: its integers are not Python's, and it compiles what it is given.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pgtide.wal.memory import (
    compiled,
    copy_bytes,
    inlined,
    load8,
    load32,
    load64,
    store8,
    store64,
    trailing_zeros,
)

_WORD_BYTES = 8
_ONES = np.int64(0x0101010101010101)
_HIGH = np.int64(-0x7F7F7F7F7F7F7F80)  # the highest bit of each byte
_TAB, _NEWLINE, _RETURN, _BACKSLASH = 9, 10, 13, 92
_TABS, _NEWLINES, _RETURNS, _BACKSLASHES = (
    _ONES * code for code in (_TAB, _NEWLINE, _RETURN, _BACKSLASH)
)
_N, _LETTER_T, _LETTER_N, _LETTER_R = 78, 116, 110, 114
_ENDS = 3  # bytes at the most that a field needs besides its text: \N, and what ends it


@inlined
def _special(word: int) -> int:
    """A mask whose lowest bit tells where the first byte is that needs a backslash; 0: none."""
    tabs, newlines = word ^ _TABS, word ^ _NEWLINES
    returns, backslashes = word ^ _RETURNS, word ^ _BACKSLASHES
    found = (tabs - _ONES) & ~tabs
    found |= (newlines - _ONES) & ~newlines
    found |= (returns - _ONES) & ~returns
    found |= (backslashes - _ONES) & ~backslashes
    return found & _HIGH


@inlined
def _letter(code: int) -> int:
    """What stands behind the backslash."""
    if code == _TAB:
        return _LETTER_T
    if code == _NEWLINE:
        return _LETTER_N
    if code == _RETURN:
        return _LETTER_R
    return code


@inlined
def _field(at: int, end: int, readable: int, out: int) -> int:
    """Write the text between two addresses; where it ends. ``out`` has room for a word more."""
    while at < end:
        left = end - at
        if at + _WORD_BYTES <= readable:
            word = load64(at)
            store64(out, word)
            found = _special(word)
            plain = trailing_zeros(found) >> 3  # of no bits, a whole word
            if plain >= left or plain == _WORD_BYTES:
                step = min(left, _WORD_BYTES)
                at += step
                out += step
                continue
            at += plain
            out += plain
        code = load8(at)
        at += 1
        if code in (_TAB, _NEWLINE, _RETURN, _BACKSLASH):
            store8(out, _BACKSLASH)
            out += 1
            code = _letter(code)
        store8(out, code)
        out += 1
    return out


@compiled
def _lines(
    rows: int, lists: int, texts: int, data: int, readable: int, valid: int, first: int,
    heads: int, head_data: int, out: int,
) -> int:  # fmt: skip
    """Write rows one behind the other; where they end.

    ``lists`` and ``texts`` have where lists and texts begin, ``valid`` a bit for each text, from
    the ``first`` on, or is 0. ``heads`` has where begins what stands before each row, or is 0.
    """
    for row in range(rows):
        if heads != 0:
            begin, end = load32(heads + 4 * row), load32(heads + 4 * row + 4)
            copy_bytes(out, head_data + begin, end - begin)
            out += end - begin
        begin, end = load32(lists + 4 * row), load32(lists + 4 * row + 4)
        for value in range(begin, end):
            if value > begin:
                store8(out, _TAB)
                out += 1
            bit = first + value
            if valid != 0 and (load8(valid + (bit >> 3)) >> (bit & 7)) & 1 == 0:
                store8(out, _BACKSLASH)
                store8(out + 1, _N)
                out += 2
            else:
                place = texts + 4 * value
                out = _field(data + load32(place), data + load32(place + 4), readable, out)
        store8(out, _NEWLINE)
        out += 1
    return out


def copy_lines(rows: pa.ListArray[Any], heads: pa.StringArray | None = None) -> memoryview:
    """Rows of texts, none of them NULL itself, as lines that COPY … FROM reads.

    ``heads``: what stands before each row, as COPY reads it, with the tab behind it; none is NULL.
    """
    texts: Any = rows.values  # all of them, also where the rows are a slice
    valid, ends, data = texts.buffers()
    places: Any = rows.buffers()[1]
    if not len(rows) or places is None:
        return memoryview(b"")
    lists = places.address + 4 * rows.offset
    bounds = np.frombuffer(places, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    used = 0
    if ends is not None and end > begin:
        offsets = np.frombuffer(ends, np.int32)
        used = int(offsets[texts.offset + end] - offsets[texts.offset + begin])
    starts, head_data, head_bytes = _heads(heads)
    # Of Arrow's pool, which keeps what is freed: the kernel would clear pages for every call.
    room = 2 * used + _ENDS * (end - begin) + len(rows) + head_bytes
    out = pa.allocate_buffer(room + _WORD_BYTES)
    written = _lines(
        len(rows),
        lists,
        0 if ends is None else ends.address + 4 * texts.offset,
        0 if data is None else data.address,
        0 if data is None else data.address + data.size,
        0 if valid is None else valid.address,
        texts.offset,
        starts,
        head_data,
        out.address,
    )
    return memoryview(out)[: written - out.address]


def _heads(heads: Any) -> tuple[int, int, int]:
    """Where their beginnings and their bytes lie, and how many bytes they are."""
    if heads is None or not len(heads):
        return 0, 0, 0
    _, ends, data = heads.buffers()
    bounds = np.frombuffer(ends, np.int32)[heads.offset : heads.offset + len(heads) + 1]
    address = 0 if data is None else data.address
    return ends.address + 4 * heads.offset, address, int(bounds[-1] - bounds[0])
