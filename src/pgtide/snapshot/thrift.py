"""Thrift's compact protocol, as far as Parquet's metadata need it: structs as bytes.

A field is its number, its type and its bytes; a struct is fields in the order of their numbers.
Apache Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _I8, _I16, _DOUBLE, _SET, _MAP = 1, 2, 3, 4, 7, 10, 11

Field = tuple[int, int, bytes]


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits to a byte."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Any number of 64 bits; small ones are short, whatever their sign."""
    return varint((number << 1) ^ (number >> 63) if number < 0 else number << 1)


def i32(id: int, number: int) -> Field:
    return id, I32, zigzag(number)


def i64(id: int, number: int) -> Field:
    return id, I64, zigzag(number)


def binary(id: int, data: bytes) -> Field:
    return id, BINARY, varint(len(data)) + data


def struct(id: int, *fields: Field) -> Field:
    return id, STRUCT, encoded(*fields)


def items(id: int, kind: int, values: Sequence[bytes]) -> Field:
    """A list of values that are encoded already."""
    size = len(values)
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return id, LIST, head + b"".join(values)


def encoded(*fields: Field) -> bytes:
    """The bytes of a struct; numbers of fields differ by less than 16."""
    out = bytearray()
    last = 0
    for id, kind, data in sorted(fields, key=lambda field: field[0]):
        assert 0 < id - last < 16, "the short form of a field's head"
        out.append((id - last) << 4 | kind)
        out += data
        last = id
    out.append(0)
    return bytes(out)


def fields(data: bytes) -> Iterable[Field]:
    """The fields of a struct, their bytes as they are."""
    id, at = 0, 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        assert step, "the short form of a field's head"
        id += step
        end = _end(data, at + 1, kind)
        yield id, kind, data[at + 1 : end]
        at = end


def _end(data: bytes, at: int, kind: int) -> int:
    """Where a value of a struct ends."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _I8:
        return at + 1
    if kind in (_I16, I32, I64):
        return _number(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == BINARY:
        size, at = _number(data, at)
        return at + size
    if kind in (LIST, _SET):
        size, kind, at = data[at] >> 4, data[at] & 15, at + 1
        if size == 15:
            size, at = _number(data, at)
        for _ in range(size):
            at = at + 1 if kind in (_TRUE, _FALSE) else _end(data, at, kind)
        return at
    assert kind == STRUCT, "Parquet has no maps"
    while data[at]:
        at = _end(data, at + 1, data[at] & 15)
    return at + 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 128:
        number |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return number | data[at] << shift, at + 1
