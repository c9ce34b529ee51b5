"""A streaming query with a name: the log keeps what it needs, also while it is stopped."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pgtide
from pgtide.errors import ConfigError
from pgtide.log import retention
from pgtide.log.maintenance import Maintenance
from pgtide.log.readers import Reader, list_readers
from pgtide.log.storage import Storage
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until

COMMITS = 3


@pytest.fixture(autouse=True)
def keep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after hours: of versions and replaced files only those stay that somebody needs."""
    monkeypatch.setattr(retention, "KEEP_VERSIONS", 0)
    monkeypatch.setattr(retention, "KEEP_VERSION_SECONDS", 0.0)
    monkeypatch.setattr(retention, "KEEP_FILES", -1.0)


def deliver(frame: DataFrame, place: Path) -> None:
    """Run a query until it has everything."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "rows"))
    )
    query.awaitTermination(120)


def write(spark: SparkSession, captured: Captured, first: int) -> int:
    """Some commits, then what maintenance does with the log; how many versions it cleans."""
    for number in range(first, first + COMMITS):
        captured.execute("INSERT INTO t VALUES (%s)", [number])
        captured.capture()
    cleaned = Maintenance(captured.config.log.path, None, None).run_fully().versions_cleaned
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return cleaned


def has_moved(storage: Storage, before: Reader) -> bool:
    return list_readers(storage)[0].version > before.version


def test_what_it_needs_is_kept(spark: SparkSession, captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (0)")
    captured.capture()
    log = captured.config.log.path
    storage = Storage(log)
    with pytest.raises(ConfigError, match="only a stream"):
        pgtide.changes(spark, log, "t", reader="known")

    def known() -> DataFrame:
        return pgtide.changes(spark, log, "t", stream=True, reader="known")

    deliver(known(), captured.directory / "known")
    deliver(pgtide.changes(spark, log, "t", stream=True), captured.directory / "unknown")
    for round in range(4):
        (before,) = list_readers(storage)
        cleaned = write(spark, captured, 1 + round * COMMITS)
        deliver(known(), captured.directory / "known")
        if round:
            wait_until(partial(has_moved, storage, before), "it to move")
            assert list_readers(storage)[0].position >= before.position
    assert cleaned, "what it has read need not be kept"
    rows = spark.read.parquet(str(captured.directory / "known" / "rows"))
    ids = sorted(row[0] for row in rows.select("after.id").collect())
    assert ids == list(range(1 + 4 * COMMITS))
    with pytest.raises(StreamingQueryException):
        deliver(pgtide.changes(spark, log, "t", stream=True), captured.directory / "unknown")


@pytest.mark.slow
def test_a_name_is_for_one_query(
    spark: SparkSession, captured: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    """While two use it, it stays where the first one is, be the second ahead by far."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (0)")
    captured.capture()
    log = captured.config.log.path
    storage = Storage(log)

    def shared() -> DataFrame:
        return pgtide.changes(spark, log, "t", stream=True, reader="shared")

    slow = (
        shared()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(captured.directory / "slow" / "checkpoint"))
        .trigger(processingTime="1 day")
        .start(str(captured.directory / "slow" / "rows"))
    )
    try:
        wait_until(lambda: slow.lastProgress, "its first batch", 120)
        (before,) = list_readers(storage)
        for round in range(3):
            write(spark, captured, 1 + round * COMMITS)
            deliver(shared(), captured.directory / "fast")
        wait_until(lambda: "two queries use reader shared" in caplog.text, "the second query")
        assert list_readers(storage) == [before]
        assert "exception" not in caplog.text
    finally:
        slow.stop()

    def moves() -> bool:
        write(spark, captured, 1000 + COMMITS * next(rounds))
        deliver(shared(), captured.directory / "fast")
        return has_moved(storage, before)

    rounds = count()
    wait_until(moves, "it to be the other's", 120)
