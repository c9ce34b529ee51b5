"""Mirrors are equal to the tables of the source, whatever happened there."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured


def run_pipeline(spark: SparkSession, captured: Captured, **pipeline: Any) -> Config:
    lake = str(captured.directory / "lake")
    settings = {"sink": {"type": "delta", "path": lake}, **pipeline}
    config = Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})
    PipelineRun(spark, config, "lake").run(until_current=True)
    return config


def mirror(spark: SparkSession, captured: Captured, table: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / table))
    columns = [name for name in frame.columns if not name.startswith("_pgtide_")]
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_mirror_equals_source(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10,2));
INSERT INTO t SELECT n, 'n' || n, n FROM generate_series(1, 100) n;
UPDATE t SET price = price + 0.5 WHERE id % 3 = 0;
DELETE FROM t WHERE id % 10 = 0;
UPDATE t SET id = id + 1000 WHERE id % 7 = 0;
"""
    )
    captured.capture()
    run_pipeline(spark, captured)
    assert mirror(spark, captured, "t") == sorted(captured.execute("TABLE t"))
    captured.run(
        """UPDATE t SET name = 'changed' WHERE id % 2 = 0;
DELETE FROM t WHERE id % 11 = 0;
INSERT INTO t VALUES (5000, NULL, NULL);
TRUNCATE t;
INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);
ALTER TABLE t RENAME COLUMN name TO title;
ALTER TABLE t ADD COLUMN note text DEFAULT 'none';
INSERT INTO t VALUES (3, 'three', 3, 'new');
"""
    )
    captured.capture()
    run_pipeline(spark, captured)
    assert mirror(spark, captured, "t") == sorted(captured.execute("TABLE t"))
