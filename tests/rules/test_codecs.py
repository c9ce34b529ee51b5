"""Rules over cells as pipelines read them from the log."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgtide import oids
from pgtide.rules import Cell
from pgtide.shape import Column
from pgtide.spark.codecs import codec_for
from pgtide.spark.sql_text import element
from tests.rules.bench import Bench, rules_of

COLUMNS = (
    Column("id", oids.INT8),
    Column("total", oids.NUMERIC),
    Column("price", oids.NUMERIC, typmod=(10 << 16 | 2) + 4),
    Column("age", 99_999, type_name="years", base_oid=oids.INT4),
    Column("at", oids.TIMESTAMPTZ),
)
ROWS: list[tuple[tuple[str | None, ...], bool]] = [
    (("5", "99.5", "10.00", "18", "2024-05-01 10:00:00+00"), True),
    (("5", "100", "10.00", "18", "2024-05-01 10:00:00+00"), False),
    (("5", "9", "NaN", "18", "infinity"), True),
    (("5", "9", "9.99", "18", "2024-05-01 10:00:00+00"), False),
    (("5", "9", "10.00", "9", "2024-05-01 10:00:00+00"), False),
    (("5", "9", "10.00", "18", "0044-03-15 BC"), False),
    (("5", "9", "10.00", "18", "2024-05-01 09:59:59.999999+00"), False),
    (("5", None, "10.00", "18", "2024-05-01 10:00:00+00"), False),
]


def test_values_of_the_log(spark: SparkSession, bench: Bench) -> None:
    names = [column.name for column in COLUMNS]
    rows = [dict(zip(names, texts, strict=True)) for texts, _ in ROWS]
    frame, _ = bench.cells(dict.fromkeys(names, "text"), rows)
    rules = rules_of(
        """[{table: users, filter: {column: total, operator: lt, value: 100}},
            {table: users, filter: {column: price, operator: gte, value: 10}},
            {table: users, filter: {column: age, operator: gt, value: "9.5"}},
            {table: users, filter: {column: at, operator: gte, value: "2024-05-01T12:00+02:00"}}]"""
    )
    kept = rules.keep([_cell(at, column) for at, column in enumerate(COLUMNS)], F.col("op"))
    assert kept is not None
    found = [row[0] for row in frame.sort("n").select(kept).collect()]
    assert found == [expected for _, expected in ROWS]


def _cell(at: int, column: Column) -> Cell:
    codec = codec_for(column)
    text = element("after", at)
    return Cell(
        name=column.name,
        type=codec.spark_type,
        value=F.expr(codec.decode(text)),
        text=F.expr(text),
        sent=None,
        type_oid=column.base_oid or column.type_oid,
    )
