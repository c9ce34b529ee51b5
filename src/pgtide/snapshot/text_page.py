"""Rows of texts as a page of Parquet's, straight from the lines of a COPY.

The column is one of lists in which lists and their elements may be NULL. A page has repetition
levels (0 begins a row), definition levels (3 for a text, 2 for NULL, 1 for a list without
elements), then the texts, each behind its length.

Apache Parquet, "Encodings", "Run Length Encoding / Bit-Packing Hybrid".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide.errors import ProtocolError
from pgtide.snapshot.thrift import varint
from pgtide.wal.copy_text import parse_lines, parse_values

LENGTH_BYTES = 4  # before each text
WORD_BYTES = 8
MOST_BYTES = 2**31 - 1  # of a page
DEFINITION_BITS = 2


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page that is not compressed yet."""

    rows: int
    values: int
    body: pa.Buffer
    width: int  # of a row
    levels: int  # bytes of the body before the first text
    places: NDArray[np.int32]  # in the body, of each value's length; of NULL, where it would be


def text_page(text: NDArray[np.uint8], lines: int, width: int) -> TextPage:
    """That many lines of ``width`` fields each; the text has these lines and no more."""
    if width == 0:
        parse_lines(text, lines, width)  # says what is wrong with it
        body = pa.py_buffer(levels(0, lines) + levels(1, lines))
        return TextPage(lines, lines, body, width, 0, np.empty(0, np.int32))
    values = lines * width
    head = _repetition(lines, width) + _packed(values, DEFINITION_BITS)
    at = len(head) + _bytes_of(values, DEFINITION_BITS)
    room = at + len(text) + LENGTH_BYTES * values + WORD_BYTES
    if values > len(text) or room > MOST_BYTES:
        raise ProtocolError("rows of a COPY do not fit a page")
    body = pa.allocate_buffer(room)
    view = np.frombuffer(memoryview(body), np.uint8)
    view[: len(head)] = np.frombuffer(head, np.uint8)
    view[at - DEFINITION_BITS : at] = 0  # what is left of the last eight levels
    places = np.empty(values, np.int32)
    used = parse_values(text, lines, width, body.address, at, len(head), places)
    return TextPage(lines, values, body.slice(0, at + used), width, at, places)


def run(value: int, n: int) -> bytes:
    """A value of at most eight bits, n times."""
    return varint(n << 1) + bytes([value])


def levels(value: int, n: int) -> bytes:
    """The same level for all."""
    same = run(value, n)
    return struct.pack("<I", len(same)) + same


def _repetition(lines: int, width: int) -> bytes:
    size = _bytes_of(lines * width, 1)
    bits = bytearray(_eight_rows(width) * -(-lines // 8))[:size]
    bits[-1] &= 0xFF >> (8 * size - lines * width)
    return _packed(lines * width, 1) + bits


@cache
def _eight_rows(width: int) -> bytes:
    """Their repetition levels, which take as many bytes as there are columns."""
    row = np.ones(width, np.uint8)
    row[0] = 0
    return np.packbits(np.tile(row, 8), bitorder="little").tobytes()


def _packed(values: int, bits: int) -> bytes:
    """What stands before levels of that many bits, eight of them after the other."""
    groups = varint(-(-values // 8) << 1 | 1)
    return struct.pack("<I", len(groups) + _bytes_of(values, bits)) + groups


def _bytes_of(values: int, bits: int) -> int:
    return -(-values // 8) * bits
