"""What a type cannot hold is NULL in the lake, and its text in the quarantine, once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, table

SCRIPT = """CREATE TABLE t (day date PRIMARY KEY, till date, secret date, gone date);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE bag (day date);
INSERT INTO t VALUES ('2024-02-29', 'infinity', 'infinity', '-infinity');
UPDATE t SET till = '-infinity';
INSERT INTO bag VALUES ('infinity'), ('2024-02-29');
"""
RULES = [
    {"table": "public.t", "transform": {"column": "secret", "null": True}},
    {"table": "public.t", "transform": {"column": "gone", "mask": {}}},
]
KEY = '{"day":"2024-02-29"}'
LAST = ("t", "till", KEY, "-infinity")
EVERY = [("t", "till", KEY, "-infinity"), ("t", "till", KEY, "infinity")]
BAG = ("bag", "day", None, "infinity")


@pytest.mark.parametrize(
    ("mode", "tables", "expected"),
    [
        ("mirror", ["public.*"], [BAG, LAST]),
        ("history", ["public.*"], [BAG, *EVERY]),
        ("scd2", ["public.t"], EVERY),
        ("pivot", ["public.t"], []),
    ],
)
def test_each_value_once(
    spark: SparkSession, captured: Captured, mode: str, tables: list[str], expected: list[Any]
) -> None:
    """Not what rules hide, nor what is written as text; and not again with a new checkpoint."""
    captured.run(SCRIPT)
    for _ in range(2):
        deliver(spark, captured, mode, tables=tables, rules=RULES, on_unrepresentable="null")
        lose_checkpoint(captured, mode)
    path = captured.directory / mode / "_pgtide" / "quarantine"
    found = []
    if path.exists():
        kept = spark.read.format("delta").load(str(path))
        found = [tuple(row) for row in kept.select("table", "column", "key", "text").collect()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert table(spark, captured, mode, "t").count() > 0
