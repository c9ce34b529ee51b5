"""A snapshot reads no faster, and at no other time of day, than it may."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.progress import SnapshotProgress
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.snapshot.taking import reads, take


def test_no_faster(make_captured: MakeCaptured, database: Database, spark: SparkSession) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY);INSERT INTO t SELECT generate_series(1, 3000);"
    )
    captured = make_captured(database, snapshot="initial")
    began: list[float] = []

    def on_progress(progress: SnapshotProgress) -> None:
        if progress.stage == "copying" and not began:
            began.append(time.monotonic())

    take(captured, spark, on_progress=on_progress, max_rate=2000, parallelism=1)
    assert time.monotonic() - began[0] >= 1.5
    assert len(reads(captured, "t")) == 3000


def test_at_no_other_time(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY);INSERT INTO t VALUES (1);")
    captured = make_captured(database, snapshot="initial")
    now = datetime.now(UTC)

    def window(begin: int, end: int) -> str:
        return "-".join(f"{now + timedelta(hours=hours):%H:%M}" for hours in (begin, end))

    stop = threading.Event()
    stages: list[str] = []

    def on_progress(progress: SnapshotProgress) -> None:
        stages.append(progress.stage)
        if len(stages) == 2:
            stop.set()

    later = {**captured.settings, "history": {"window": window(2, 4)}}
    snapshot = InitialSnapshot(
        Config.model_validate(later), spark, stop=stop, on_progress=on_progress
    )
    assert not snapshot.take()
    assert stages == ["waiting"] * 2
    assert captured.rows() == []
    take(captured, spark, window=window(-2, 2))
    assert reads(captured, "t") == [["1"]]
