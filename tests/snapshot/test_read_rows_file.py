"""Files of rows that were read: whoever reads Parquet finds what COPY gave."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pgtide.errors import InvalidText, ProtocolError
from pgtide.log.schema import FILE_SCHEMA
from pgtide.snapshot.read_rows_file import ReadRowsFile, SameRows
from pgtide.snapshot.row_lz4 import compressed
from pgtide.snapshot.text_page import text_page
from pgtide.snapshot.thrift import fields

READ_AT = datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC)
SAME = SameRows(lsn=2**40 - 1, read_at=READ_AT, schema="Schéma", table='a "b"', shape=7)
ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\"}
Rows = list[list[str | None]]


def copied(rows: Rows) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Rows as COPY writes them."""

    def field(value: str | None) -> str:
        if value is None:
            return "\\N"
        return "".join(f"\\{ESCAPES[c]}" if c in ESCAPES else c for c in value)

    lines = ["\t".join(map(field, row)) + "\n" for row in rows]
    return np.frombuffer("".join(lines).encode(), np.uint8)


def written(groups: list[tuple[int, list[Rows]]]) -> pa.Buffer:
    """A file of groups, each with its first ``seq`` and its pages."""
    sink = pa.BufferOutputStream()
    file = ReadRowsFile(sink)
    for first, pages in groups:
        for rows in pages:
            page = text_page(copied(rows), len(rows), len(rows[0]))
            file.add(page, compressed(page))
        file.end_group(SAME, first)
    file.close()
    assert file.size == sink.tell()
    return sink.getvalue()


def expected(groups: list[tuple[int, list[Rows]]]) -> list[dict[str, Any]]:
    found = []
    for first, pages in groups:
        for number, row in enumerate(row for rows in pages for row in rows):
            found.append(
                {
                    **dict.fromkeys(FILE_SCHEMA.names),
                    "lsn": SAME.lsn,
                    "seq": first + number,
                    "committed_at": READ_AT,
                    "op": "read",
                    "schema": SAME.schema,
                    "table": SAME.table,
                    "shape": SAME.shape,
                    "after": row,
                    "last": False,
                }
            )
    return found


texts = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@st.composite
def many_groups(draw: st.DrawFn) -> list[tuple[int, list[Rows]]]:
    width = draw(st.integers(0, 9))
    row = st.lists(texts, min_size=width, max_size=width)
    pages = st.lists(st.lists(row, min_size=1, max_size=20), min_size=1, max_size=3)
    seqs = st.integers(0, 2**62)
    return draw(st.lists(st.tuples(seqs, pages), min_size=1, max_size=3))


@settings(max_examples=300, deadline=None)
@given(many_groups())
def test_arrow_reads_what_was_written(groups: list[tuple[int, list[Rows]]]) -> None:
    file = pq.ParquetFile(pa.BufferReader(written(groups)))
    assert file.schema_arrow.equals(FILE_SCHEMA)
    assert file.num_row_groups == len(groups)
    assert file.read().to_pylist() == expected(groups)
    for number, (first, pages) in enumerate(groups):
        rows = sum(len(page) for page in pages)
        group = file.metadata.row_group(number)
        bounds: dict[str, Any] = {
            group.column(index).path_in_schema: group.column(index).statistics
            for index in range(group.num_columns)
        }
        assert (bounds["seq"].min, bounds["seq"].max) == (first, first + rows - 1)
        assert (bounds["table"].min, bounds["lsn"].max) == (SAME.table, SAME.lsn)
        assert group.num_rows == rows


def many(rows: int, width: int) -> list[tuple[int, list[Rows]]]:
    """Several pages, longer than the runs and blocks that encodings have."""
    values: Rows = [
        [
            None if (row + column) % 7 == 0 else f"value {row} of {column} é"
            for column in range(width)
        ]
        for row in range(rows)
    ]
    third = rows // 3 + 1
    return [(5 << 32, [values[:third], values[third:]]), (9 << 32, [values[:1]])]


@pytest.mark.parametrize(("rows", "width"), [(3000, 3), (400, 64), (2, 1600), (50_000, 1)])
def test_spark_reads_it_too(spark: SparkSession, tmp_path: Path, rows: int, width: int) -> None:
    groups = many(rows, width)
    (tmp_path / "a.parquet").write_bytes(memoryview(written(groups)))
    wanted = expected(groups)
    for vectorised in ("true", "false"):
        session = spark.newSession()
        session.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
        frame = session.read.parquet(str(tmp_path)).orderBy("seq")
        found = [row.asDict() for row in frame.drop("committed_at").collect()]
        assert found == [{k: v for k, v in row.items() if k != "committed_at"} for row in wanted]
        (micros,) = frame.selectExpr("unix_micros(committed_at)").distinct().collect()
        assert micros[0] == int(READ_AT.timestamp() * 1_000_000)
        assert frame.filter(f"seq = {9 << 32}").count() == 1


def test_lines_that_copy_does_not_write() -> None:
    for text, lines, width in (
        (b"a\tb\n", 1, 3),
        (b"a\\q\n", 1, 1),
        (b"a", 1, 1),
        (b"a\nb\n", 1, 1),
    ):
        with pytest.raises(ProtocolError):
            text_page(np.frombuffer(text, np.uint8), lines, width)
    with pytest.raises(InvalidText):
        text_page(np.frombuffer(b"good\xff\n", np.uint8), 1, 1)


def test_metadata_of_other_writers_are_understood() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2], "b": [["x"], None]}), sink)
    data = bytes(memoryview(sink.getvalue()))
    size = int.from_bytes(data[-8:-4], "little")
    found = [field[0] for field in fields(data[-8 - size : -8])]
    assert found[:4] == [1, 2, 3, 4]
