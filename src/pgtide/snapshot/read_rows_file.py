"""Parquet files of rows that were read: texts as COPY gave them, and columns of one value.

Writing such a file through Arrow costs a task of a snapshot as much as everything else: each
text would be copied four times, and columns of one value be encoded value by value. Here a page
of texts comes ready from the compiled loop that reads COPY's lines, and a column of one value
is a dozen bytes. The files are like any other of the log: same schema, LZ4, dictionaries.

Apache Parquet, "File Format", "Encodings" and parquet.thrift.
"""

from __future__ import annotations

import struct as packing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgtide.log.datafile import PARQUET_OPTIONS, STATISTICS
from pgtide.log.schema import FILE_SCHEMA
from pgtide.snapshot.text_page import TextPage, levels, run
from pgtide.snapshot.thrift import (
    BINARY,
    I32,
    STRUCT,
    Field,
    binary,
    encoded,
    fields,
    i32,
    i64,
    items,
    struct,
    varint,
    zigzag,
)

_MAGIC = b"PAR1"
_BOOLEAN, _INT32, _INT64, _BYTE_ARRAY = 0, 1, 2, 6  # physical types
_PLAIN, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY = 0, 3, 5, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED, _LZ4_RAW = 0, 7
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of DELTA_BINARY_PACKED: values to a block, and to a block's parts.
_BLOCK, _PARTS = 128, 4


@dataclass(frozen=True)
class SameRows:
    """What all rows of a group share."""

    lsn: int
    read_at: datetime
    schema: str
    table: str
    shape: int

    def statistics(self, first_seq: int, rows: int) -> dict[str, Any]:
        """Those of an ``add`` action, as ``file_statistics`` would find them."""
        same = {"schema": self.schema, "table": self.table, "op": "read"}
        return {
            "numRecords": rows,
            "minValues": {"lsn": self.lsn, "seq": first_seq, **same},
            "maxValues": {"lsn": self.lsn, "seq": first_seq + rows - 1, **same},
            "nullCount": dict.fromkeys(STATISTICS, 0),
        }


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of texts, compressed."""

    rows: int
    values: int
    size: int  # before
    body: pa.Buffer


@dataclass
class _Column:
    """A column of a group as its pages are written."""

    path: tuple[str, ...]
    kind: int
    codec: int
    encodings: tuple[int, ...]
    begin: int
    values: int = 0
    size: int = 0  # with the heads of pages
    written: int = 0
    dictionary_bytes: int = 0  # of its page, at the beginning
    bounds: tuple[bytes, bytes] | None = None

    def encoded(self) -> bytes:
        places: list[Field] = []
        if self.dictionary_bytes:
            places.append(i64(11, self.begin))
        if self.bounds is not None:
            low, high = self.bounds
            places.append(struct(12, i64(3, 0), binary(5, high), binary(6, low)))
        names = [varint(len(name)) + name.encode() for name in self.path]
        meta = struct(
            3,
            i32(1, self.kind),
            items(2, I32, [zigzag(encoding) for encoding in self.encodings]),
            items(3, BINARY, names),
            i32(4, self.codec),
            i64(5, self.values),
            i64(6, self.size),
            i64(7, self.written),
            i64(9, self.begin + self.dictionary_bytes),
            *places,
        )
        return encoded(i64(2, self.begin), meta)


class ReadRowsFile:
    """One file, written to a sink from its beginning to its end."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._at = 0
        self._codec = pa.Codec("lz4_raw")
        self._pages: list[_Page] = []  # of the group
        self._rows = 0
        self._groups: list[bytes] = []
        self._write(_MAGIC)

    @property
    def size(self) -> int:
        """Bytes so far, without the group that is being collected."""
        return self._at

    @property
    def group_rows(self) -> int:
        """Rows of the group that is being collected."""
        return sum(page.rows for page in self._pages)

    @property
    def group_bytes(self) -> int:
        """Bytes of the group that is being collected, as a reader has to hold them."""
        return sum(page.size for page in self._pages)

    def add(self, page: TextPage, compressed: pa.Buffer) -> None:
        """Append rows to the group: a page, and its body as an LZ4 block."""
        self._pages.append(_Page(page.rows, page.values, page.body.size, compressed))

    def end_group(self, same: SameRows, first_seq: int) -> None:
        """Write the rows since the last group, column by column.

        In the order of the schema: Spark takes a group to be where its first column is.
        """
        n, begin = self.group_rows, self._at
        micros = (same.read_at - _EPOCH) // timedelta(microseconds=1)
        columns = [
            self._same("lsn", n, _INT64, _int64(same.lsn)),
            self._sequence("seq", n, first_seq),
            self._nothing("xid", n, _INT64),
            self._same("committed_at", n, _INT64, _int64(micros)),
            self._same("op", n, _BYTE_ARRAY, b"read"),
            self._same("schema", n, _BYTE_ARRAY, same.schema.encode()),
            self._same("table", n, _BYTE_ARRAY, same.table.encode()),
            self._same("shape", n, _INT64, _int64(same.shape)),
            self._nothing("before", n, _BYTE_ARRAY, in_list=True),
            self._texts("after"),
            self._nothing("unchanged", n, _INT32, in_list=True),
            self._nothing("payload", n, _BYTE_ARRAY),
            self._false("last", n),
        ]
        assert [column.path[0] for column in columns] == FILE_SCHEMA.names
        chunks = items(1, STRUCT, [column.encoded() for column in columns])
        size = sum(column.size for column in columns)
        places = i64(5, begin), i64(6, self._at - begin)
        self._groups.append(encoded(chunks, i64(2, size), i64(3, n), *places))
        self._rows += n
        self._pages = []

    def close(self) -> None:
        """Write what tells readers where everything is; the sink stays open."""
        groups = items(4, STRUCT, self._groups)
        footer = encoded(*_model(), i64(3, self._rows), groups)
        self._write(footer + packing.pack("<I", len(footer)) + _MAGIC)

    # -- columns ------------------------------------------------------------------------

    def _texts(self, name: str) -> _Column:
        path = (name, "list", "element")
        column = _Column(path, _BYTE_ARRAY, _LZ4_RAW, (_PLAIN, _RLE), self._at)
        for page in self._pages:
            self._page(column, _PLAIN, page.values, page.body, page.size)
        return column

    def _same(self, name: str, n: int, kind: int, value: bytes) -> _Column:
        """A column of one value: a dictionary, and how often its only entry comes."""
        column = _Column((name,), kind, _UNCOMPRESSED, (_PLAIN, _RLE, _RLE_DICTIONARY), self._at)
        plain = packing.pack("<I", len(value)) + value if kind == _BYTE_ARRAY else value
        head = struct(7, i32(1, 1), i32(2, _PLAIN))
        self._written(column, _head(_DICTIONARY_PAGE, len(plain), len(plain), head), plain)
        column.dictionary_bytes = column.written
        column.bounds = (value, value)
        body = levels(1, n) + b"\1" + run(0, n)  # indexes of one bit
        self._page(column, _RLE_DICTIONARY, n, body, len(body))
        return column

    def _sequence(self, name: str, n: int, first: int) -> _Column:
        """Numbers that count up by one: blocks of differences that need no bits at all."""
        column = _Column((name,), _INT64, _UNCOMPRESSED, (_RLE, _DELTA_BINARY_PACKED), self._at)
        head = varint(_BLOCK) + varint(_PARTS) + varint(n) + zigzag(first)
        blocks = -(-(n - 1) // _BLOCK)
        body = levels(1, n) + head + (zigzag(1) + bytes(_PARTS)) * blocks
        column.bounds = (_int64(first), _int64(first + n - 1))
        self._page(column, _DELTA_BINARY_PACKED, n, body, len(body))
        return column

    def _nothing(self, name: str, n: int, kind: int, *, in_list: bool = False) -> _Column:
        """A column of NULL."""
        path = (name, "list", "element") if in_list else (name,)
        column = _Column(path, kind, _UNCOMPRESSED, (_PLAIN, _RLE), self._at)
        body = levels(0, n) * (2 if in_list else 1)
        self._page(column, _PLAIN, n, body, len(body))
        return column

    def _false(self, name: str, n: int) -> _Column:
        column = _Column((name,), _BOOLEAN, _LZ4_RAW, (_PLAIN, _RLE), self._at)
        body = levels(1, n) + bytes(-(-n // 8))
        self._page(column, _PLAIN, n, self._codec.compress(body), len(body))
        return column

    # -- pages --------------------------------------------------------------------------

    def _page(self, column: _Column, encoding: int, values: int, body: Any, size: int) -> None:
        """A data page; ``size``: before it was compressed."""
        head = struct(5, i32(1, values), i32(2, encoding), i32(3, _RLE), i32(4, _RLE))
        written = memoryview(body).nbytes
        self._written(column, _head(_DATA_PAGE, size, written, head), body)
        column.size += size - written
        column.values += values

    def _written(self, column: _Column, head: bytes, body: Any) -> None:
        before = self._at
        self._write(head)
        self._write(body)
        column.size += self._at - before
        column.written += self._at - before

    def _write(self, data: Any) -> None:
        self._sink.write(data)
        self._at += memoryview(data).nbytes


def _head(kind: int, size: int, written: int, more: Field) -> bytes:
    return encoded(i32(1, kind), i32(2, size), i32(3, written), more)


def _int64(number: int) -> bytes:
    return packing.pack("<q", number)


@cache
def _model() -> list[Field]:
    """What Arrow says of any file of the log: version, schema, creator, how bounds are ordered."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, FILE_SCHEMA, **PARQUET_OPTIONS).close()
    data = bytes(memoryview(sink.getvalue()))
    (size,) = packing.unpack("<I", data[-8:-4])
    return [field for field in fields(data[-8 - size : -8]) if field[0] in (1, 2, 6, 7)]
