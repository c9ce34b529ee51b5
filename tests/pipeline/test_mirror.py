"""Mirrors are equal to the tables of the source, whatever happened there."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgtide.config import Config
from pgtide.errors import Unrepresentable
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from tests.fixtures.capture import Captured


def lake_config(captured: Captured, **pipeline: Any) -> Config:
    lake = str(captured.directory / "lake")
    settings = {"sink": {"type": "delta", "path": lake}, **pipeline}
    return Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})


def run_pipeline(spark: SparkSession, captured: Captured, **pipeline: Any) -> State:
    captured.capture()
    return PipelineRun(spark, lake_config(captured, **pipeline), "lake").run(until_current=True)


def mirror(
    spark: SparkSession, captured: Captured, table: str, rows: str = "true"
) -> list[tuple[Any, ...]]:
    path = str(captured.directory / "lake" / "public" / table)
    frame = spark.read.format("delta").load(path).filter(rows)
    columns = [name for name in frame.columns if not name.startswith("_pgtide_")]
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def test_views_soft_deletes_and_text(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY, day date);\n")
    captured.run("INSERT INTO t VALUES (2, '2024-02-29'), (3, NULL), (4, NULL);\n")
    lake = {"type": "delta", "path": str(captured.directory / "lake"), "soft_delete": False}
    run_pipeline(spark, captured, sink=lake)
    captured.run("INSERT INTO t VALUES (1, 'infinity');\nDELETE FROM t WHERE id = 3;\n")
    captured.run("CREATE TABLE k (day date PRIMARY KEY);\n")
    captured.run("INSERT INTO k VALUES ('infinity'), ('-infinity'), ('2024-02-29');\n")
    sink = {**lake, "soft_delete": True, "committed_at": True, "views": captured.database.name}
    captured.capture()
    with pytest.raises(Unrepresentable, match="does not fit"):
        run_pipeline(spark, captured, sink=sink)
    run_pipeline(spark, captured, sink=sink, on_unrepresentable="null")
    captured.run("DELETE FROM t WHERE id = 2;\n")
    run_pipeline(spark, captured, sink=sink, on_unrepresentable="null")
    view = spark.table(f"{captured.database.name}.public_t")
    assert sorted(tuple(row) for row in view.collect()) == [(1, None), (4, None)]
    assert [row[0] for row in mirror(spark, captured, "t")] == [1, 2, 3, 4]
    frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / "t"))
    (found,) = frame.filter("id = 1").select(F.unix_micros("_pgtide_committed_at")).collect()
    (made,) = [
        e for e in captured.events("insert") if e.table == "t" and (e.after or {})["id"] == "1"
    ]
    assert made.committed_at is not None
    assert found[0] == round(made.committed_at.timestamp() * 1e6)
    assert len(mirror(spark, captured, "k")) == 1
    path = str(captured.directory / "lake" / "_pgtide" / "quarantine")
    kept = spark.read.format("delta").load(path).select("table", "column", "key", "text")
    assert sorted(tuple(row) for row in kept.collect()) == [
        ("k", "day", '{"day":"-infinity"}', "-infinity"),
        ("k", "day", '{"day":"infinity"}', "infinity"),
        ("t", "day", '{"id":"1"}', "infinity"),
    ]


def source(captured: Captured, table: str) -> list[tuple[Any, ...]]:
    return sorted(captured.execute(f"TABLE {table}"), key=repr)


def check_equal(spark: SparkSession, captured: Captured, *tables: str) -> None:
    for table in tables:
        assert mirror(spark, captured, table) == source(captured, table), table


def test_mirrors_equal_the_source(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10,2));
CREATE TABLE big (id int PRIMARY KEY, n int, doc text);
ALTER TABLE big ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t SELECT n, 'n' || n, n FROM generate_series(1, 100) n;
INSERT INTO big SELECT n, n, repeat('x', 9000) || n FROM generate_series(1, 9) n;
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (3, 'c');
UPDATE t SET price = price + 0.5 WHERE id % 3 = 0;
DELETE FROM t WHERE id % 10 = 0;
UPDATE t SET id = id + 1000 WHERE id % 7 = 0;
"""
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t", "big", "bag")
    captured.run(
        """UPDATE t SET name = 'changed' WHERE id % 2 = 0;
DELETE FROM t WHERE id % 11 = 0;
TRUNCATE t;
INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);
ALTER TABLE t RENAME COLUMN name TO title;
ALTER TABLE t ADD COLUMN note text DEFAULT 'none';
INSERT INTO t VALUES (3, 'three', 3, 'new');
UPDATE big SET n = n + 100 WHERE id < 4;
UPDATE big SET id = id + 50 WHERE id = 5;
UPDATE big SET id = id + 50, n = 0 WHERE id = 55;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1);
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 2);
UPDATE bag SET b = 'a', a = 1 WHERE a = 3;
INSERT INTO bag VALUES (4, 'd'), (4, 'd');
"""
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t", "big", "bag")
