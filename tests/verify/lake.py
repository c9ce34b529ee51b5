"""A mirror of the test's database, and what a verification says of it."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.verify.report import PipelineReport, TableReport
from pgtide.verify.verifying import Options, Verification
from tests.fixtures.capture import Captured


def lake_config(captured: Captured, sink: dict[str, Any] | None = None, **pipeline: Any) -> Config:
    place = {"type": "delta", "path": str(captured.directory / "lake"), **(sink or {})}
    settings = {"sink": place, **pipeline}
    return Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})


def verify(spark: SparkSession, config: Config, **options: Any) -> PipelineReport:
    return Verification(spark, config, "lake", Options(**options)).run()


def table_report(report: PipelineReport, name: str) -> TableReport:
    (found,) = [table for table in report.tables if table.table == f"public.{name}"]
    return found


def place(captured: Captured, name: str) -> str:
    return f"delta.`{captured.directory / 'lake' / 'public' / name}`"
