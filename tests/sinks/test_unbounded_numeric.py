"""``unbounded_numeric``: decimals for ``numeric`` without precision, exact or unrepresentable."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import TargetError, Unrepresentable
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, rows, table

DECIMAL: dict[str, Any] = {"unbounded_numeric": "decimal(38,10)"}
TABLES = """CREATE DOMAIN price AS numeric;
CREATE TABLE t
    (k numeric PRIMARY KEY, total numeric, huge numeric(50,5), parts numeric[], cost price);
ALTER TABLE t REPLICA IDENTITY FULL;
"""
VALUES = """INSERT INTO t VALUES (1.0, 12.340000000000000, 7, '{1.5,NULL,2.50}', -0.1);
INSERT INTO t VALUES (2, NULL);
UPDATE t SET k = 1.00, total = 12.34 WHERE k = 1;
INSERT INTO t VALUES (3.5, 1);
DELETE FROM t WHERE k = 2;
"""
KINDS = ["decimal(38,10)", "decimal(38,10)", "decimal(38,10)", "array<decimal(38,10)>"]
FIRST = (Decimal(1), Decimal("12.34"), Decimal(7), [Decimal("1.5"), None, Decimal("2.5")])
BAD = ("1e28", "0.00000000001", "NaN", "Infinity", "-" + "9" * 40)


@pytest.mark.parametrize(
    "mode",
    ["mirror", "pivot", *(pytest.param(m, marks=pytest.mark.slow) for m in ("history", "scd2"))],
)
def test_in_the_lake(spark: SparkSession, captured: Captured, mode: str) -> None:
    captured.run(TABLES)
    captured.run(VALUES)
    deliver(spark, captured, mode, **DECIMAL)
    found = table(spark, captured, mode, "t")
    kinds = {name: kind for name, kind in found.dtypes if not name.startswith("_")}
    if mode == "pivot":
        assert kinds["k"] == "decimal(38,10)"
        texts = found.filter("crud_type = 'u'").select("k", "new_value").collect()
        assert sorted(row[1] for row in texts) == ["1.00", "12.34"], "fields are told as texts"
        return
    names = ("k", "total", "huge", "parts", "cost")
    assert [kinds[name] for name in names] == [*KINDS, "decimal(38,10)"]
    read = rows(found.filter("is_current") if mode == "scd2" else found, *names)
    first, last = (*FIRST, Decimal("-0.1")), (Decimal("3.5"), Decimal(1), None, None, None)
    if mode == "history":
        assert [row[0] for row in read] == [Decimal(text) for text in ("1", "2", "1", "3.5", "2")]
        assert read[0] == read[2] == first
    else:
        assert read == [first, last], "1.0 and 1.00 are one key"


@pytest.mark.parametrize("mode", ["mirror", pytest.param("history", marks=pytest.mark.slow)])
def test_what_it_cannot_hold(spark: SparkSession, captured: Captured, mode: str) -> None:
    """Is never rounded: an error, NULL with a record, or the column stays a string."""
    captured.run(TABLES)
    captured.run("INSERT INTO t VALUES (1, 1.5);")
    deliver(spark, captured, mode, **DECIMAL)
    for number, text in enumerate(BAD, start=2):
        captured.execute(f"INSERT INTO t VALUES ({number}, '{text}')")
    captured.execute("INSERT INTO t (k, parts) VALUES (8, '{1,NaN}'), (9, '{0.10}')")
    with pytest.raises(Unrepresentable) as refused:
        deliver(spark, captured, mode, **DECIMAL)
    assert "public.t.total" in refused.value.detail
    deliver(spark, captured, mode, **DECIMAL, on_unrepresentable="null")
    found = table(spark, captured, mode, "t").orderBy("k").select("k", "total", "parts").collect()
    assert [row[1] for row in found] == [Decimal("1.5"), *[None] * 7]
    assert [row[2] for row in found[-2:]] == [None, [Decimal("0.1")]]
    path = captured.directory / mode / "_pgtide" / "quarantine"
    kept = spark.read.format("delta").load(str(path)).select("column", "text").collect()
    texts = dict.fromkeys(BAD, "total") | {"{1,NaN}": "parts"}
    texts["1" + "0" * 28] = texts.pop("1e28")
    assert {row[1]: row[0] for row in kept} == texts


def test_as_text(spark: SparkSession, captured: Captured) -> None:
    """The policy that leaves nothing unrepresentable wins, as for every type."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, a numeric, b numeric(5,2));")
    captured.run("INSERT INTO t VALUES (1, '1e40', 'NaN');")
    deliver(spark, captured, "mirror", **DECIMAL, on_unrepresentable="text")
    (row,) = table(spark, captured, "mirror", "t").select("a", "b").collect()
    assert tuple(row) == ("1" + "0" * 40, "NaN")


def test_rules(spark: SparkSession, captured: Captured) -> None:
    """SQL sees a decimal; a filter judges numbers by their digits, also those that do not fit."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, a numeric, b numeric);")
    captured.run("INSERT INTO t VALUES (1, 9, 2), (2, 10.50, 0.5), (3, '1e40', 1), (4, 'NaN', 1);")
    captured.run("INSERT INTO t VALUES (5, '-1e40', 1), (6, 10, 3), (7, '10.000000000001', 1);")
    rules = [
        {"table": "t", "filter": {"column": "a", "operator": "gt", "value": 10}},
        {"table": "t", "filter": {"column": "a", "operator": "lt", "value": "1e35"}},
        {"table": "t", "transform": {"column": "b", "sql": "b * 2"}},
        {"table": "t", "transform": {"column": "a", "null": True}},
    ]
    deliver(spark, captured, "mirror", **DECIMAL, rules=rules)
    found = table(spark, captured, "mirror", "t").orderBy("id").select("id", "b").collect()
    assert [tuple(row) for row in found] == [(2, Decimal(1)), (7, Decimal(2))]


def test_parquet_and_text_files(spark: SparkSession, captured: Captured) -> None:
    """A file has the type or, where it is one of texts, what Postgres printed."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, a numeric);")
    captured.run("INSERT INTO t VALUES (1, 1.50), (2, 'NaN');")
    captured.capture()
    for form in ("parquet", "jsonl"):
        path = captured.directory / form
        sink = {"type": "file", "path": str(path), "format": form}
        lenient = {"on_unrepresentable": "null"} if form == "parquet" else {}
        settings = {"sink": sink, "tables": ["public.t"], **DECIMAL, **lenient}
        config = Config.model_validate({**captured.settings, "pipelines": {form: settings}})
        PipelineRun(spark, config, form).run(until_current=True)
    found = [
        row
        for file in sorted((captured.directory / "parquet" / "public" / "t").glob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
        if row.get("after")
    ]
    assert [row["after"]["a"] for row in found] == [Decimal("1.5"), None]
    assert [[lost["text"] for lost in row["unrepresentable"]] for row in found] == [[], ["NaN"]]
    lines = "".join(file.read_text() for file in (captured.directory / "jsonl").rglob("*.jsonl"))
    assert "1.50" in lines
    assert "NaN" in lines


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "scd2"])
def test_set_later(spark: SparkSession, captured: Captured, mode: str) -> None:
    """A string cannot become a decimal: the old column stays beside the new one."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, a numeric);")
    captured.run("INSERT INTO t VALUES (1, 1.50), (2, 2);")
    deliver(spark, captured, mode)
    captured.run("UPDATE t SET a = 3.5 WHERE id = 2;")
    deliver(spark, captured, mode, **DECIMAL)
    found = table(spark, captured, mode, "t")
    found = found.filter("is_current") if mode == "scd2" else found
    read = [tuple(row) for row in found.orderBy("id").select("id", "a", "a__string").collect()]
    assert read[0] == (1, None, "1.50")
    assert read[1][:2] == (2, Decimal("3.5"))
    # All of it comes again: what the table has got since is not undone.
    lose_checkpoint(captured, mode)
    deliver(spark, captured, mode, **DECIMAL)
    captured.run("UPDATE t SET a = 4.5 WHERE id = 2;")
    # Fewer digits before the point: that is no wider type either.
    deliver(spark, captured, mode, unbounded_numeric="decimal(38,12)")
    found = table(spark, captured, mode, "t")
    found = found.filter("is_current") if mode == "scd2" else found
    (row,) = found.filter("id = 2").select("a").collect()
    assert row[0] == Decimal("4.5")
    assert {"a__string", "a__decimal_38_10"} <= set(found.columns)


@pytest.mark.parametrize("mode", ["mirror", pytest.param("scd2", marks=pytest.mark.slow)])
def test_a_key_set_later(spark: SparkSession, captured: Captured, mode: str) -> None:
    """Rows are found by the key: without it those that are there would stay for ever."""
    captured.run("CREATE TABLE t (k numeric PRIMARY KEY, v int);\nINSERT INTO t VALUES (1.0, 1);")
    deliver(spark, captured, mode)
    captured.run("UPDATE t SET v = 2;")
    with pytest.raises(TargetError, match="key") as refused:
        deliver(spark, captured, mode, **DECIMAL)
    assert "pgtide replay" in refused.value.hint
    deliver(spark, captured, mode)
    found = table(spark, captured, mode, "t")
    found = found.filter("is_current") if mode == "scd2" else found
    assert [tuple(row) for row in found.select("k", "v").collect()] == [("1.0", 2)]
