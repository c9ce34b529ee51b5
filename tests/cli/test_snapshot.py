"""``pgtide snapshot``, and as processes the snapshot before the first ``capture`` or ``run``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as pgtide
from tests.cli.test_run import START_S, Running
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.spark import Staying
from tests.fixtures.waiting import interrupted, wait_until
from tests.snapshot.taking import reads, source

ROWS = "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, {}) n"


@pytest.fixture
def running(make_captured: MakeCaptured, database: Database) -> Running:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute(ROWS.format(1000))
    return Running(make_captured(database, snapshot="initial"))


def command(running: Running, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgtide", "-c", str(running.config), *arguments],
        cwd=running.captured.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        env={**os.environ, **env},
    )


def whole(captured: Captured) -> bool:
    return reads(captured, "t") == source(captured, "SELECT id::text, note FROM t")


def test_the_command(
    spark: SparkSession,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pgtide.cli.snapshot.copying_session", lambda config: Staying(spark))
    assert pgtide(["-c", str(running.config), "snapshot", "--json"]) == 0, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["tables"]) == (1000, {"public.t": 1000})
    assert document["point"] == str(running.captured.log.position)
    assert whole(running.captured)
    with running.captured.capturing():
        wait_until(lambda: running.captured.slot()["active"], "the capture")
        assert pgtide(["-c", str(running.config), "snapshot"]) == 1
    assert "pgtide refresh" in capsys.readouterr().err


def test_wrong_arguments_are_told_without_spark(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["--tables", "nowhere"], "no captured table matches nowhere"),
        (["--where", "t"], "not a condition"),
        (["--where", "t=nonsense"], "not understood"),
        (["--where", "t=true); DROP TABLE public.t; SELECT (1"], "not understood"),
        (["--where", "other=true"], "which is not read"),
    ):
        assert pgtide(["-c", str(running.config), "snapshot", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_capture_begins_with_one(running: Running) -> None:
    done = command(running, "capture", "--until-current", "--json")
    assert done.returncode == 0, done.stderr
    assert "pgtide snapshot first" in done.stderr
    assert json.loads(done.stdout)["position"] == str(running.captured.log.position)
    assert whole(running.captured)
    running.captured.execute("INSERT INTO t VALUES (0)")
    done = command(running, "capture", "--until-current")
    assert "pgtide snapshot first" not in done.stderr
    assert running.captured.changes("t") == [("insert", None, {"id": "0", "note": None})]


def test_a_log_that_began_without_one(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    running.captured.execute("UPDATE t SET note = 'y' WHERE id = 1")
    running.captured.capture()
    for name in ("capture", "run"):
        assert pgtide(["-c", str(running.config), name]) == 1
        assert "pgtide snapshot" in capsys.readouterr().err


@pytest.mark.slow
def test_run_begins_with_one(running: Running) -> None:
    assert running.finish("run", "--until-current") == 0, running.said()
    assert "read 1000 rows of 1 tables" in running.said()
    assert running.equal("t")
    running.captured.execute("DELETE FROM t WHERE id > 500")
    assert running.finish("run", "--until-current") == 0, running.said()
    assert running.equal("t")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [
        "snapshot_locked",
        "snapshot_exported",
        "snapshot_shapes",
        "snapshot_part",
        "snapshot_copied",
        "snapshot_written",
        "snapshot_committed",
    ],
)
def test_killed(running: Running, fault: str) -> None:
    code = running.finish("snapshot", fault=f"{fault}:1")
    # A task that dies takes only its job along.
    assert code == (1 if fault == "snapshot_part" else -signal.SIGKILL), running.said()
    running.captured.execute("UPDATE t SET note = 'later' WHERE id = 7")
    assert running.finish("run", "--until-current") == 0, running.said()
    running.captured.check_log()
    assert running.equal("t")


def test_ctrl_c(
    spark: SparkSession,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends while the slot waits for a transaction, and its exit code says so."""
    monkeypatch.setattr("pgtide.cli.snapshot.copying_session", lambda config: Staying(spark))
    captured = running.captured
    waits = "SELECT 1 FROM pg_replication_slots WHERE temporary AND confirmed_flush_lsn IS NULL"
    with captured.database.connect(autocommit=False) as other:
        other.execute("INSERT INTO t VALUES (0)")
        with interrupted(lambda: captured.execute(f"{waits} AND database = current_database()")):
            assert pgtide(["-c", str(running.config), "snapshot"]) == 130
    assert "error: the snapshot was stopped" in capsys.readouterr().err
    assert captured.rows() == []
