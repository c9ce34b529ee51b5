"""Storage, server or network break: capture goes on by itself when they are back."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from pgtide.capture import engine, flow
from pgtide.capture.engine import Capture
from pgtide.errors import (
    LogFenced,
    SlotBusy,
    SourceUnavailable,
    TransientError,
)
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.proxy import Proxy
from tests.fixtures.waiting import wait_until
from tests.fixtures.workload import Workload, check_workload

GEARS = ("live", "bulk")


# -- one writer ---------------------------------------------------------------


def test_a_second_capture_fails_with_the_reason(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SLOT_BUSY_PATIENCE_S", 0.2)
    with captured.capturing("live") as first:
        first.wait(flushed(captured.database))
        with pytest.raises(SlotBusy, match="another capture is attached") as caught:
            Capture(captured.config).run(until_current=True)
        assert "pgtide status" in caught.value.hint


def test_a_second_writer_is_fenced(captured: Captured) -> None:
    log = captured.config.log
    first, second = (
        LogWriter(log.path, log.storage, captured.config.source.slot) for _ in range(2)
    )
    first.commit([], Lsn(first.position + 8), 1)
    with pytest.raises(LogFenced, match="another capture writes this log"):
        second.commit([], Lsn(second.position + 16), 1)
    first.commit([], Lsn(first.position + 8), 1)
    with pytest.raises(LogFenced):
        second.reopen()


# -- the log's storage --------------------------------------------------------


@pytest.mark.parametrize("idle", [False, True], ids=["rows", "idle"])
def test_a_log_directory_that_is_gone_and_put_back(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    monkeypatch.setattr(flow, "IDLE_COMMIT_INTERVAL_S", 0.1)
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log, away = Path(captured.config.log.path), captured.directory / "away"
    with captured.capturing() as running:
        captured.execute("INSERT INTO t VALUES (1)")
        running.wait(flushed(captured.database))
        log.rename(away)
        captured.execute("INSERT INTO t VALUES (2)" if not idle else "SELECT pg_switch_wal()")
        wait_until(lambda: running.progress.last_error, "the failure to be noticed")
        assert running.thread.is_alive(), running.error
        assert not log.exists(), "nothing is written where the log was"
        away.rename(log)
        captured.execute("INSERT INTO t VALUES (3)")
        running.wait(flushed(captured.database))
    assert len(captured.events("insert")) == (2 if idle else 3)
    captured.check_log()


def test_a_full_disk_is_waited_for(captured: Captured) -> None:
    """The limit on the size of a process's files stands for a disk without room."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    process = captured.fork(capture__engine__BACKOFF_LAST_S=0.2)
    assert process.pid is not None
    captured.execute("INSERT INTO t VALUES (1, 'a')")
    first = flushed(captured.database)
    wait_until(lambda: captured.log.position >= first, "the first row")
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, hard))
    captured.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(2, 99) n")
    second = flushed(captured.database)

    def noticed() -> bool:
        document = json.loads(Path(captured.config.log.path, "capture.json").read_text())
        return (document["last_error"] or {}).get("type") == "LogUnavailable"

    wait_until(noticed, "the failure to be noticed")
    assert captured.log.position < second
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
    wait_until(lambda: captured.log.position >= second, "the rest")
    process.terminate()
    process.join(20)
    assert process.exitcode == 0, captured.output()
    process.close()
    assert len(captured.events("insert")) == 99
    captured.check_log()


# -- the server and the network -----------------------------------------------


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts(
    make_server: MakeServer, make_captured: MakeCaptured, mode: str
) -> None:
    server = make_server(fsync="on")
    captured = make_captured(Database.create(server))
    captured.execute(Workload.TABLES)
    with captured.capturing("live") as running:
        with Workload(captured.database, limit=40) as workload:
            workload.join()
        server.restart(mode)  # type: ignore[arg-type]
        captured.execute("INSERT INTO account VALUES (100, 0)")
        running.wait(flushed(captured.database))
    check_workload(captured)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("gear", GEARS)
def test_a_connection_cut_in_the_middle_of_a_message(
    make_captured: MakeCaptured,
    proxy: Callable[[Database], Proxy],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    gear: str,
    reset: bool,
) -> None:
    monkeypatch.setattr(engine, "BACKOFF_LAST_S", 0.02)
    link = proxy(database)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured = make_captured(url=link.url, admin_url=database.url)
    captured.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 300) n")
    captured.execute("INSERT INTO t SELECT n, repeat('y', 100) FROM generate_series(301, 900) n")
    connections = link.connections
    for size in (4_000, 20_000, 100_001, 330_000):
        for _ in range(4):  # whichever of the session's connections carries the data
            link.cut_after(size, reset=reset)
    progress = captured.capture(gear)
    assert link.cuts > 0
    assert link.connections > connections + 4
    assert progress.last_error is not None
    assert progress.last_error["type"] == "SourceUnavailable"
    assert len(captured.check_log()) == 900


def test_a_server_that_closes_at_every_step_of_the_handshake(
    make_captured: MakeCaptured,
    proxy: Callable[[Database], Proxy],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever byte the server stops at: a transient error, never a hang or a crash."""
    link = proxy(database)
    captured = make_captured(url=link.url, admin_url=database.url)
    monkeypatch.setattr(engine, "IN_HASTE_PATIENCE_S", 0.0)
    failures = 0
    for size in [1, 2, 5, 9, 10, 20, 50, 100, 200, 300, 350, 400, 430, 450, 500, 700, 1000, 1500]:
        for connection in range(4):
            link.let_pass(connection)
            link.cut_after(size)
            try:
                captured.capture("live")
            except TransientError:
                failures += 1
    assert failures > 50
    link.refuse()
    with pytest.raises(SourceUnavailable):
        captured.capture("live")
    link.refuse(False)
    captured.capture("live")


@pytest.mark.parametrize("which", ["backend_type = 'walsender'", "backend_type <> 'walsender'"])
def test_sessions_that_an_administrator_ends(captured: Captured, which: str) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured.capturing() as running:
        for number in range(3):
            captured.execute("INSERT INTO t VALUES (%s)", [number])
            running.wait(flushed(captured.database))
            captured.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                f" current_database() AND application_name = 'pgtide capture' AND {which}"
            )
    assert len(captured.events("insert")) == 3
    captured.check_log()


def test_nobody_listens(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "IN_HASTE_PATIENCE_S", 0.0)
    source = captured.config.source.model_copy(
        update={"url": type(captured.config.source.url)("postgresql://x@127.0.0.1:1/none")}
    )
    with pytest.raises(SourceUnavailable, match="refused"):
        captured.capture(config=captured.config.model_copy(update={"source": source}))
