"""Running a pipeline into Delta tables, and reading them."""

from __future__ import annotations

import shutil
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgtide.config import Config
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured


def deliver(
    spark: SparkSession,
    captured: Captured,
    mode: str,
    *,
    pivot: dict[str, Any] | None = None,
    dropped_tables: str = "keep",
    soft_delete: bool = False,
    **pipeline: Any,
) -> None:
    """Capture what there is and bring it into the lake."""
    captured.capture()
    sink: dict[str, Any] = {"type": "delta", "path": str(captured.directory / mode), "mode": mode}
    sink |= {"dropped_tables": dropped_tables} | ({"pivot": pivot} if pivot else {})
    sink |= {"soft_delete": True} if soft_delete else {}
    settings = {"sink": sink, **pipeline}
    config = Config.model_validate({**captured.settings, "pipelines": {mode: settings}})
    PipelineRun(spark, config, mode).run(until_current=True)


def lose_checkpoint(captured: Captured, mode: str) -> None:
    """What a pipeline knows about itself is gone: it begins anew."""
    shutil.rmtree(captured.directory / "log" / "pipelines" / mode)


def table(
    spark: SparkSession, captured: Captured, mode: str, name: str, schema: str = "public"
) -> DataFrame:
    path = captured.directory / mode / schema / name
    return spark.read.format("delta").load(str(path))


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Rows by position, only some columns."""
    ordered = frame.orderBy("_pgtide_lsn", "_pgtide_seq")
    return [tuple(row) for row in ordered.select(*columns).collect()]
