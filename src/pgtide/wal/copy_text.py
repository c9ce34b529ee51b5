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


@compiled
def _fields(
    at: int, end: int, lines: int, width: int, data: int, offsets: int, valid: int, state: int
) -> int:
    """Copy the fields of that many lines; ``data`` has room for a word more than the text."""
    out = data
    value = 0
    seen = np.int64(0)
    nulls = 0
    store32(offsets, 0)
    for line in range(lines):
        set_field(state, LINE, line)
        for column in range(max(width, 1)):
            first = out
            null = False
            while True:
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
                    return CUT_OFF
                code = load8(at)
                at += 1
                if code in (_TAB, _NEWLINE):
                    if (code == _NEWLINE) != (column >= width - 1):
                        return FIELD_COUNT
                    if null and out != first:
                        return BAD_ESCAPE
                    break
                if code == _BACKSLASH:
                    if at >= end:
                        return CUT_OFF
                    code = load8(at)
                    at += 1
                    if code == _N and out == first and not null:
                        null = True
                        continue
                    code = _unescaped(code)
                    if code < 0:
                        return BAD_ESCAPE
                seen |= code
                store8(out, code)
                out += 1
            if width == 0:
                if out != first or null:
                    return FIELD_COUNT
                break
            store8(valid + value, 0 if null else 1)
            nulls += 1 if null else 0
            value += 1
            store32(offsets + 4 * value, out - data)
    set_field(state, LINE, lines)
    set_field(state, USED, out - data)
    set_field(state, NULLS, nulls)
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
