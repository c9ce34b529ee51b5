"""COPY text format as bytes → Arrow: one list of texts per line, compiled, without the GIL.

A line is a row: fields between tabs, ``\\N`` for NULL, and a backslash before each
control character that would be taken for something else. Eight bytes are looked at
at a time and copied with one store; only a tab, a newline or a backslash stops that.
All reads end at the end of the bytes given, so no input can make it read past them;
what the server would not write is a ProtocolError that names the line.

PostgreSQL manual, "COPY", section "Text Format".
"""

# Types below are numba's: its integers are not Python's, and it compiles what it is given.
# mypy: disable-error-code="return-value, no-any-return, misc, call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide.errors import InvalidText, ProtocolError
from pgtide.log.schema import TEXT_LIST
from pgtide.wal.memory import (
    compiled,
    inlined,
    load8,
    load64,
    set_field,
    store8,
    store32,
    store64,
    trailing_zeros,
)

# Slots of the state.
LINE = 0  # lines finished
USED = 1  # bytes of text written
NULLS = 2
SEEN = 3  # all bytes, or'ed eight at a time: whether any is beyond ASCII
STATE_SIZE = 4

# What the kernel returns.
DONE = 0
CUT_OFF = 1
FIELD_COUNT = 2
BAD_ESCAPE = 3
TRAILING = 4
_PROBLEMS = {
    CUT_OFF: "The text ends in the middle of a line.",
    FIELD_COUNT: "The line has not as many fields as the query has columns.",
    BAD_ESCAPE: "The line has a backslash that COPY does not write.",
    TRAILING: "There is more text than lines.",
}

_WORD_BYTES = 8
_ONES = np.int64(0x0101010101010101)
_HIGH = np.int64(-0x7F7F7F7F7F7F7F80)  # the highest bit of each byte
_TAB, _NEWLINE, _BACKSLASH, _N = 9, 10, 92, 78
_NULL = 256  # beside the byte that ended a field
_LENGTH_BYTES = 4
_TABS, _NEWLINES, _BACKSLASHES = (_ONES * code for code in (_TAB, _NEWLINE, _BACKSLASH))


@inlined
def _special(word: int) -> int:
    """A mask whose lowest bit tells where the first tab, newline or backslash is; 0: none."""
    tabs, newlines, backslashes = word ^ _TABS, word ^ _NEWLINES, word ^ _BACKSLASHES
    found = (tabs - _ONES) & ~tabs
    found |= (newlines - _ONES) & ~newlines
    found |= (backslashes - _ONES) & ~backslashes
    return found & _HIGH


@inlined
def _unescaped(code: int) -> int:
    """The byte that a letter after a backslash stands for, or -1."""
    if code == _BACKSLASH:
        return _BACKSLASH
    if code == 98:  # b
        return 8
    if code == 102:  # f
        return 12
    if code == 110:  # n
        return 10
    if code == 114:  # r
        return 13
    if code == 116:  # t
        return 9
    if code == 118:  # v
        return 11
    return -1


@inlined
def _field(at: int, end: int, out: int) -> tuple[int, int, int, int]:
    """Copy one field: where it ended, where its copy ends, how, and all of its bytes or'ed.

    How: the byte that ended it, with ``_NULL`` if it stands for NULL; or a problem, negative.
    ``out`` has room for a word more than the text.
    """
    first = out
    null = 0
    how = 0
    seen = np.int64(0)
    while how == 0:
        if at + _WORD_BYTES <= end:
            word = load64(at)
            store64(out, word)
            seen |= word
            found = _special(word)
            if found == 0:
                at += _WORD_BYTES
                out += _WORD_BYTES
                continue
            plain = trailing_zeros(found) >> 3
            at += plain
            out += plain
        if at >= end:
            how = -CUT_OFF
            continue
        code = load8(at)
        at += 1
        if code in (_TAB, _NEWLINE):
            how = -BAD_ESCAPE if null and out != first else code | null
            continue
        if code == _BACKSLASH:
            if at >= end:
                how = -CUT_OFF
                continue
            code = load8(at)
            at += 1
            if code == _N and out == first and not null:
                null = _NULL
                continue
            code = _unescaped(code)
            if code < 0:
                how = -BAD_ESCAPE
                continue
        seen |= code
        store8(out, code)
        out += 1
    return at, out, how, seen


@inlined
def _problem(how: int, column: int, width: int) -> int:
    """What is wrong with how a field ended, DONE if nothing."""
    if how < 0:
        return -how
    if width == 0 and how & _NULL:
        return FIELD_COUNT
    return DONE if (how & ~_NULL == _NEWLINE) == (column >= width - 1) else FIELD_COUNT


@compiled
def _fields(
    at: int, end: int, lines: int, width: int, data: int, offsets: int, valid: int, state: int
) -> int:
    """The fields of that many lines one behind the other, where they end, and which are NULL."""
    out = data
    value = 0
    seen = np.int64(0)
    nulls = 0
    store32(offsets, 0)
    for line in range(lines):
        set_field(state, LINE, line)
        for column in range(max(width, 1)):
            first = out
            at, out, how, bits = _field(at, end, out)
            seen |= bits
            why = _problem(how, column, width)
            if why != DONE or (width == 0 and out != first):
                return why if why != DONE else FIELD_COUNT
            if width == 0:
                break
            null = how & _NULL != 0
            store8(valid + value, 0 if null else 1)
            nulls += 1 if null else 0
            value += 1
            store32(offsets + 4 * value, out - data)
    set_field(state, LINE, lines)
    set_field(state, USED, out - data)
    set_field(state, NULLS, nulls)
    set_field(state, SEEN, seen)
    return DONE if at == end else TRAILING


@compiled
def _values(
    at: int, end: int, lines: int, width: int,
    page: int, data: int, levels: int, places: int, state: int,
) -> int:  # fmt: skip
    """The fields that are not NULL, each behind its length; of all, two bits: 3, or 2 for NULL."""
    out = data
    seen = np.int64(0)
    bits = np.int64(0)
    shift = 0
    for line in range(lines):
        set_field(state, LINE, line)
        for column in range(width):
            head = out
            store32(places, head - page)
            places += 4
            at, out, how, bytes_seen = _field(at, end, head + _LENGTH_BYTES)
            seen |= bytes_seen
            why = _problem(how, column, width)
            if why != DONE:
                return why
            level = np.int64(3)
            if how & _NULL:
                out = head
                level = np.int64(2)
            else:
                store32(head, out - head - _LENGTH_BYTES)
            bits |= level << shift
            shift += 2
            if shift == 64:
                store64(levels, bits)
                levels += 8
                bits = np.int64(0)
                shift = 0
    while shift > 0:
        store8(levels, bits & 255)
        levels += 1
        bits >>= 8
        shift -= 8
    set_field(state, LINE, lines)
    set_field(state, USED, out - data)
    set_field(state, SEEN, seen)
    return DONE if at == end else TRAILING


def parse_lines(text: NDArray[np.uint8], lines: int, width: int) -> pa.ListArray[Any]:
    """That many lines as rows of ``width`` texts each; the text has these lines and no more."""
    size, values = len(text), lines * width
    if values > size or size > np.iinfo(np.int32).max - _WORD_BYTES:
        raise _malformed(FIELD_COUNT, 0)
    # Of Arrow's pool, which keeps what is freed: the kernel would clear pages for every batch.
    data, offsets = pa.allocate_buffer(size + _WORD_BYTES), pa.allocate_buffer(4 * (values + 1))
    valid = np.empty(values, np.uint8)
    state = np.zeros(STATE_SIZE, np.int64)
    begin = text.ctypes.data
    why = _fields(
        begin, begin + size, lines, width,
        data.address, offsets.address, valid.ctypes.data, state.ctypes.data,
    )  # fmt: skip
    if why != DONE:
        raise _malformed(why, int(state[LINE]))
    nulls = int(state[NULLS])
    texts = pa.StringArray.from_buffers(
        values,
        offsets,
        data.slice(0, int(state[USED])),
        pa.py_buffer(np.packbits(valid, bitorder="little").data) if nulls else None,
        nulls,
    )
    if int(state[SEEN]) & int(_HIGH):
        _check_utf8(texts)
    rows = np.arange(lines + 1, dtype=np.int32) * np.int32(width)
    return pa.ListArray.from_buffers(
        TEXT_LIST, lines, [None, pa.py_buffer(rows.data)], children=[texts]
    )


def parse_values(
    text: NDArray[np.uint8],
    lines: int,
    width: int,
    page: int,
    data: int,
    levels: int,
    places: NDArray[np.int32],
) -> int:
    """The same lines, in memory of the caller's at ``page``; how many bytes the values take.

    At ``data`` in it come the fields that are not NULL, each behind its length of four bytes, with
    room for as many and a word more than the text. At ``levels`` come two bits for each field, 3,
    or 2 for NULL. ``places`` gets where in the page each field is, or would be.
    """
    size = len(text)
    state = np.zeros(STATE_SIZE, np.int64)
    begin = text.ctypes.data
    why = _values(
        begin, begin + size, lines, width,
        page, page + data, page + levels, places.ctypes.data, state.ctypes.data,
    )  # fmt: skip
    if why != DONE:
        raise _malformed(why, int(state[LINE]))
    if int(state[SEEN]) & int(_HIGH):
        # What parts the values is ASCII: the text is UTF-8 if all of them are.
        ends = pa.py_buffer(np.array([0, size], np.int32).data)
        _check_utf8(pa.StringArray.from_buffers(1, ends, pa.py_buffer(text.data)))
    return int(state[USED])


def _check_utf8(texts: pa.StringArray) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidText(
            "a value is not UTF-8",
            detail="The database's encoding lets bytes into text that are no UTF-8.",
            hint="Find the rows with convert_from(column::bytea, 'UTF8') and correct them.",
        ) from None


def _malformed(why: int, line: int) -> ProtocolError:
    return ProtocolError(f"malformed line {line} of a COPY", detail=_PROBLEMS[why])
