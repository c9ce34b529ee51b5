"""Feedback, switching, catching up, and ending in order."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading

import pytest

from pgtide.capture import bulk, flow, receive, session
from pgtide.capture.engine import Capture
from pgtide.cli import run_command as pgtide
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.server_checks import check_slots
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until
from tests.fixtures.workload import Workload, check_workload

GEARS = ("live", "bulk")


def test_a_slow_flush_does_not_lose_the_connection(
    make_server: MakeServer, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when every buffer is full and we no longer hear what the server asks."""
    server = make_server(wal_sender_timeout="1s")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    commit, slow = LogWriter.commit, threading.Event()

    def slowly(self: LogWriter, *args: object) -> None:
        slow.wait(3)
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(LogWriter, "commit", slowly)
    monkeypatch.setattr(receive, "CHUNK_BYTES", 65_536)
    with captured.capturing("live") as running:
        captured.execute("INSERT INTO t VALUES (1, '')")
        captured.execute("INSERT INTO t SELECT n, repeat('x', 900) FROM generate_series(2, 5000) n")
        running.wait(flushed(captured.database))
        slow.set()
    assert running.progress.last_error is None
    assert len(captured.events("insert")) == 5000


@pytest.mark.parametrize("gear", GEARS)
def test_stopping_confirms_what_is_durable(captured: Captured, gear: str) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with captured.capturing(gear) as running:
        captured.execute("INSERT INTO t VALUES (1)")
        running.wait(flushed(captured.database))
    wait_until(lambda: not captured.slot()["active"], "the slot to be free")
    assert captured.confirmed() == captured.log.position


def test_the_command_stops_on_sigterm(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    settings = captured.directory / "pgtide.yaml"
    settings.write_text(json.dumps(captured.settings))  # JSON is YAML
    command = "from pgtide.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "-c", str(settings), "--json", "capture"],
        stdout=subprocess.PIPE,
    )
    captured.execute("INSERT INTO t VALUES (1)")
    position = flushed(captured.database)
    wait_until(lambda: captured.log.position >= position, "the row", 30)
    captured.execute("INSERT INTO t VALUES (2)")
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(output)["gear"] == "stopped"
    captured.capture()
    assert len(captured.events("insert")) == 2


def test_status_does_not_take_a_killed_capture_for_a_running_one(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pgtide.cli.status_facts.SAMPLE_SECONDS", 0.0)
    settings = captured.directory / "pgtide.yaml"
    settings.write_text(json.dumps(captured.settings))

    def running() -> bool | None:
        pgtide(["status", "--json", "-c", str(settings)])
        capture = json.loads(capsys.readouterr().out)["capture"]
        return capture and bool(capture["running"])

    process = captured.fork("live")
    wait_until(running, "the capture to run")
    process.kill()
    process.join()
    # Long before its last word in the log is old.
    wait_until(lambda: running() is False, "the server to notice", 2.0)


def test_until_current_covers_asynchronous_commits(captured: Captured) -> None:
    name = captured.database.name
    captured.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    for number in range(10):
        captured.execute("INSERT INTO t VALUES (%s)", [number])
        captured.capture("live" if number % 2 else "bulk")
        assert len(captured.events("insert")) == number + 1


@pytest.mark.parametrize("gear", ["live", None])
def test_an_idle_publication_on_a_busy_server(
    make_captured: MakeCaptured,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    gear: str | None,
) -> None:
    """Other databases write: the slot's positions advance all the same."""
    monkeypatch.setattr(flow, "IDLE_COMMIT_INTERVAL_S", 0.5)
    captured = make_captured()
    other = Database.create(database.server)
    try:
        other.execute("CREATE TABLE busy (id int)")
        with captured.capturing(gear):
            before = captured.slot()

            def advanced() -> bool:
                other.execute("INSERT INTO busy SELECT generate_series(1, 100); CHECKPOINT")
                now = captured.slot()
                return all(
                    Lsn.parse(now[name]) > Lsn.parse(before[name])
                    for name in ("confirmed_flush_lsn", "restart_lsn")
                )

            wait_until(advanced, "both positions to advance")
        assert captured.rows() == []
    finally:
        other.drop()


def test_stopping_in_the_middle_of_a_long_peek(captured: Captured) -> None:
    """The server is still decoding: stopping does not wait for it."""
    captured.execute("CREATE TABLE t (id int, v text)")
    captured.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    captured.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 100000) n")
    with captured.capturing("bulk") as running:
        wait_until(lambda: running.progress.gear == "bulk", "the bulk gear")
        running.capture.stop()
        running.thread.join(2.0)
        assert not running.thread.is_alive()
    captured.capture()
    assert sum(batch.num_rows for batch in captured.log.batches()) == 100_000 + 2


@pytest.mark.parametrize(
    "setting", ["temp_file_limit = '1MB'", "statement_timeout = '20ms'"], ids=["space", "time"]
)
def test_what_the_server_cannot_hold_goes_through_the_live_gear(
    make_captured: MakeCaptured,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
) -> None:
    if "timeout" in setting:
        monkeypatch.setattr(bulk, "BULK_TIMEOUT_MS", 20)
    url = database.create_role("LOGIN REPLICATION")
    captured = make_captured(url=url, admin_url=database.url)
    captured.execute(f"ALTER ROLE {database.roles[0]} SET {setting}")
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n")
    progress = captured.capture()
    assert progress.last_error is None
    assert len(captured.check_log()) == 30_000 + 1


def test_no_slot_is_free_for_the_bulk_gear(
    make_server: MakeServer, make_captured: MakeCaptured, caplog: pytest.LogCaptureFixture
) -> None:
    captured = make_captured(Database.create(make_server(max_replication_slots="1")))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t SELECT generate_series(1, 100)")
    with captured.database.connect() as conn:
        found = check_slots(conn, captured.config.source.slot)
    assert (found.level, "a backlog is read slowly" in found.message) == ("warn", True)
    captured.capture()
    assert "bulk gear: all replication slots are in use; going on live" in caplog.text
    assert len(captured.check_log()) == 100 + 1


def test_switching_gears_is_no_failure(
    make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BULK_ENTER_BYTES", 200_000)
    monkeypatch.setattr(session, "BULK_LEAVE_BYTES", 20_000)
    monkeypatch.setattr(session, "LAG_INTERVAL_S", 0.0)
    captured = make_captured()
    gears: list[str] = []
    captured.execute(Workload.TABLES)
    running_gear = Capture(
        captured.config,
        on_progress=lambda p: gears.append(p.gear) if gears[-1:] != [p.gear] else None,
    )
    thread = threading.Thread(target=running_gear.run)
    thread.start()
    try:
        with Workload(captured.database, sessions=2, limit=150) as workload:
            for burst in range(4):
                first = burst * 10_000 + 1000
                captured.execute(
                    "INSERT INTO series SELECT generate_series(%s::int, %s)",
                    [first, first + 9_999],
                )
                wait_until(lambda: gears[-1:] == ["live"], "the live gear")
            workload.join()
        end = flushed(captured.database)
        wait_until(lambda: running_gear.progress.position >= end, "the log to be current")
    finally:
        running_gear.stop()
        thread.join(30)
    assert running_gear.progress.last_error is None
    assert gears.count("bulk") >= 2
    check_workload(captured)


def test_nothing_is_left_open(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.capture("live")
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for number, gear in enumerate(GEARS * 2):
        captured.execute("INSERT INTO t VALUES (%s)", [number])
        captured.capture(gear)
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files
