"""A history may take hours: the version that a pipeline reads stays readable meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.pipeline.replaying import replay
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.spark.changes import changes, latest
from tests.fixtures.capture import Captured

HOUR_S = 3600


def configure(captured: Captured) -> Config:
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    found = Config.model_validate({**captured.settings, "pipelines": {"lake": {"sink": sink}}})
    small = found.pipelines["lake"].model_copy(update={"batch": 1})
    return found.model_copy(update={"pipelines": {"lake": small}})


def age(spark: SparkSession, log: Path) -> None:
    """What the log has was written hours ago, and Spark has not kept any of it."""
    then = time.time() - 5 * HOUR_S
    for commit in (log / "changes" / "_delta_log").iterdir():
        os.utime(commit, (then, then))
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.slow
def test_a_history_that_takes_hours(spark: SparkSession, captured: Captured) -> None:
    log = captured.directory / "log"
    captured.run(
        "CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\nINSERT INTO t VALUES (2);"
    )
    captured.capture()
    config = configure(captured)

    def hours_later(_: str, state: State) -> None:
        age(spark, log)
        if state.chunks_done == 1:
            captured.run("INSERT INTO t VALUES (4);")
            captured.capture()

    def check() -> None:
        frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / "t"))
        found = sorted(row["id"] for row in frame.select("id").collect())
        assert found == [row[0] for row in captured.execute("SELECT id FROM t ORDER BY id")]

    state = PipelineRun(spark, config, "lake", on_batch=hours_later).run(until_current=True)
    assert len(state.chunks) > 1
    check()
    age(spark, log)
    replay(spark, config, "lake", on_batch=lambda *_: age(spark, log))
    check()
    age(spark, log)
    rows = captured.execute("SELECT count(*) FROM t")[0][0]
    assert latest(spark, str(log), "public.t").count() == rows
    assert changes(spark, str(log), "public.t").count() == rows
