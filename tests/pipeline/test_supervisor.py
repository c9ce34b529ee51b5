"""Capture and pipelines under one supervisor: what goes on, and what ends it."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.cli.attached import command_line
from pgtide.cli.invocation import Invocation
from pgtide.config import Config
from pgtide.errors import SlotMissing, TargetUnavailable, Unrepresentable
from pgtide.log.storage import Storage
from pgtide.pipeline import capture_process, delivery
from pgtide.pipeline.capture_process import CaptureProcess
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.supervisor import Supervisor
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until


def supervise(
    spark: SparkSession, captured: Captured, *, until_current: bool = False, **pipelines: Any
) -> Supervisor:
    sinks = {
        name: {"sink": {"type": "delta", "path": str(captured.directory / name)}, **settings}
        for name, settings in pipelines.items()
    }
    document = {**captured.settings, "pipelines": sinks}
    path = captured.directory / "pgtide.yaml"
    path.write_text(json.dumps(document))
    command = command_line(Invocation(config_path=path), until_current=until_current)
    config = Config.model_validate(document)
    return Supervisor(config, list(sinks), command, lambda: spark, until_current=until_current)


def mirror(spark: SparkSession, captured: Captured, place: str) -> list[int]:
    frame = spark.read.format("delta").load(str(captured.directory / place))
    return sorted(row[0] for row in frame.select("id").collect())


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_process, "UNTIL_CURRENT_PATIENCE_S", 0.1)
    capture = CaptureProcess(["/nowhere/python"], until_current=True)
    capture.run()
    assert capture.error is not None
    assert "again and again" in capture.error.message


def test_until_current_tries_again_and_leaves_the_broken_behind(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.run("CREATE TABLE good (id int PRIMARY KEY);\nINSERT INTO good VALUES (1), (2);")
    captured.run("CREATE TABLE bad (id int PRIMARY KEY, day date);")
    captured.run("INSERT INTO bad VALUES (1, 'infinity');")
    failures = [TargetUnavailable("try again"), TargetUnavailable("and again")]

    def fail_first(point: str) -> None:
        if failures and point == "pipeline.written":
            raise failures.pop()

    monkeypatch.setattr(delivery, "fault", fail_first)
    supervisor = supervise(
        spark, captured, until_current=True, lake={"tables": ["public.good"]}, pond={}
    )
    supervisor.run()
    assert not failures
    assert [member.name for member in supervisor.failed] == ["pond"]
    assert isinstance(supervisor.members["pond"].error, Unrepresentable)
    assert supervisor.members["lake"].status == "current"
    assert mirror(spark, captured, "lake/public/good") == [1, 2]
    assert supervisor.capture.progress["events"] >= 3
    error = StateFile(Storage(captured.config.log.path), "pond").error()
    assert error is not None
    assert (error["type"], error["transient"]) == ("Unrepresentable", False)


def test_a_dead_capture_is_started_again_and_a_parked_table_taken_up(
    spark: SparkSession, captured: Captured
) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("CREATE TABLE bad (id int PRIMARY KEY, day date);")
    captured.run("INSERT INTO bad VALUES (1, 'infinity');")
    supervisor = supervise(spark, captured, lake={"interval": "50ms", "on_error": "park"})
    lake = supervisor.members["lake"]
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        wait_until(lambda: lake.state and lake.state.parked, "a parked table", 90)
        first = supervisor.capture.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        captured.run("UPDATE bad SET day = NULL;\nINSERT INTO t VALUES (2);")
        wait_until(lambda: lake.state and lake.state.table_rows.get("public.t") == 2, "more", 90)
        assert supervisor.capture.pid not in (first, None)
        StateFile(Storage(captured.config.log.path), "lake").ask_resume(None)
        wait_until(lambda: lake.state and not lake.state.parked, "its return", 90)
    finally:
        supervisor.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert lake.status == "stopped"
    assert mirror(spark, captured, "lake/public/t") == [1, 2]
    assert mirror(spark, captured, "lake/public/bad") == [1]


def test_a_capture_that_cannot_go_on_ends_everything(
    spark: SparkSession, captured: Captured
) -> None:
    captured.execute("SELECT pg_drop_replication_slot(%s)", [captured.config.source.slot])
    supervisor = supervise(spark, captured, lake={})
    with pytest.raises(SlotMissing) as raised:
        supervisor.run()
    assert "pgtide" in raised.value.hint
    assert supervisor.members["lake"].status in ("starting", "stopped")


@pytest.mark.slow
def test_until_current_has_rows_read_that_a_pipeline_asks_for(
    spark: SparkSession, captured: Captured
) -> None:
    """What a default means for a filter is told by the rows: they are part of what was there."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1), (2);")
    captured.run("ALTER TABLE t ADD tenant int DEFAULT 2;\nINSERT INTO t VALUES (3, 1);")
    kept = {"column": "tenant", "operator": "eq", "value": 1}
    rules = [{"table": "public.t", "optional": True, "filter": kept}]
    supervisor = supervise(spark, captured, until_current=True, lake={"rules": rules})
    supervisor.run()
    assert supervisor.members["lake"].status == "current"
    assert mirror(spark, captured, "lake/public/t") == [3]
