"""A pipeline that the log was told to forget, and that runs after all."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import LogGap, TargetUnavailable
from pgtide.log import retention
from pgtide.log.maintenance import Maintenance
from pgtide.log.readers import forget_reader, list_readers
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.pipeline import parking
from pgtide.pipeline.parking import reader_name
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from tests.fixtures.capture import Captured


@pytest.fixture(autouse=True)
def keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after hours: of versions and replaced files only those stay that somebody needs."""
    monkeypatch.setattr(retention, "KEEP_VERSIONS", 0)
    monkeypatch.setattr(retention, "KEEP_VERSION_SECONDS", 0.0)
    monkeypatch.setattr(retention, "KEEP_FILES", -1.0)


def insert(captured: Captured, *ids: int) -> None:
    for number in ids:
        captured.run(f"INSERT INTO t VALUES ({number});\n")
        captured.capture()


def forget_and_clean(spark: SparkSession, captured: Captured) -> None:
    forget_reader(Storage(captured.config.log.path), reader_name("lake"))
    assert Maintenance(captured.config.log.path, None, None).run_fully().versions_cleaned
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def configure(captured: Captured, **changed: Any) -> Config:
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "mode": "history"}
    found = Config.model_validate({**captured.settings, "pipelines": {"lake": {"sink": sink}}})
    pipeline = found.pipelines["lake"].model_copy(update=changed)
    return found.model_copy(update={"pipelines": {"lake": pipeline}})


def ids(spark: SparkSession, captured: Captured) -> list[int]:
    frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / "t"))
    return sorted(row["id"] for row in frame.select("id").collect())


def test_what_is_still_there_is_delivered(spark: SparkSession, captured: Captured) -> None:
    """The versions that its stream was at are gone, the changes are not."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    insert(captured, 1)
    config = configure(captured)
    for number in (2, 3):
        PipelineRun(spark, config, "lake").run(until_current=True)
        insert(captured, number)
    PipelineRun(spark, config, "lake").run(until_current=True)
    insert(captured, 4, 5)
    forget_and_clean(spark, captured)
    insert(captured, 6)
    PipelineRun(spark, config, "lake").run(until_current=True)
    assert ids(spark, captured) == [1, 2, 3, 4, 5, 6]
    assert [reader.name for reader in list_readers(Storage(config.log.path))] == ["pipeline.lake"]
    insert(captured, 7)
    PipelineRun(spark, config, "lake").run(until_current=True)
    assert ids(spark, captured) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_in_the_middle_of_its_history(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    insert(captured, 1, 2, 3)
    config = configure(captured, batch=1)

    def stop(_: str, state: State) -> None:
        raise TargetUnavailable("enough")

    with pytest.raises(TargetUnavailable):
        PipelineRun(spark, config, "lake", on_batch=stop).run(until_current=True)
    insert(captured, 4, 5)
    forget_and_clean(spark, captured)
    insert(captured, 6)
    PipelineRun(spark, config, "lake").run(until_current=True)
    assert ids(spark, captured) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_retention_comes_before_it_is_known_again(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs is there when it looks, and gone by the time that the log keeps it."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    insert(captured, 1)
    config = configure(captured)
    log = Storage(config.log.path)
    PipelineRun(spark, config, "lake").run(until_current=True)
    insert(captured, 2)
    forget_reader(log, reader_name("lake"))
    register = parking.register

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(parking, "register", register)
        changes = log.child("changes")
        assert retention.retain(
            changes, open_table(changes), list_readers(log), 0.0, now=time.time() + 3 * 86_400
        )
        register(*arguments)

    monkeypatch.setattr(parking, "register", late)
    with pytest.raises(LogGap, match="no longer holds everything that the pipeline needs"):
        PipelineRun(spark, config, "lake").run(until_current=True)
    assert ids(spark, captured) == [1]
