"""What capture does when something breaks: it goes on by itself, or says who must do what."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pgtide.capture import engine, flow, session
from pgtide.capture.engine import Capture
from pgtide.capture.startup import check_timeline
from pgtide.errors import (
    LogFenced,
    OtherSource,
    PublicationChanged,
    PublicationMissing,
    SlotAdvanced,
    SlotBusy,
    SlotInvalidated,
    SlotMissing,
    SourceRewound,
    SourceUnavailable,
    TimelineDiverged,
    TransientError,
)
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.embedded import bundled_bin_dir
from tests.fixtures.capture import Captured, MakeCaptured, Workload, check_workload
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.proxy import Proxy
from tests.fixtures.waiting import wait_until

GEARS = ("live", "bulk")


def flushed(database: Database) -> Lsn:
    """The end of the WAL, everything of it on disk."""
    database.execute("SELECT pg_logical_emit_message(true, 'app', '')")
    ((lsn,),) = database.execute("SELECT pg_current_wal_flush_lsn()::text")
    return Lsn.parse(lsn)


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
        return (document["last_error"] or {}).get("kind") == "LogUnavailable"

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
    assert progress.last_error["kind"] == "SourceUnavailable"
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
    monkeypatch.setattr(engine, "UNTIL_CURRENT_PATIENCE_S", 0.0)
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


def test_nobody_listens(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "UNTIL_CURRENT_PATIENCE_S", 0.0)
    source = captured.config.source.model_copy(
        update={"url": type(captured.config.source.url)("postgresql://x@127.0.0.1:1/none")}
    )
    with pytest.raises(SourceUnavailable, match="refused"):
        captured.capture(config=captured.config.model_copy(update={"source": source}))


# -- the slot and the source are not what the log knows -------------------------


def test_the_slot_was_dropped(captured: Captured) -> None:
    captured.execute("SELECT pg_drop_replication_slot(%s)", [captured.config.source.slot])
    with pytest.raises(SlotMissing, match="does not exist") as caught:
        captured.capture()
    assert "pgtide init" in caught.value.hint


def test_the_slot_was_dropped_while_nobody_held_it(captured: Captured) -> None:
    with captured.capturing("live") as running:
        running.wait(flushed(captured.database))
        slot = captured.config.source.slot

        def dropped() -> bool:
            captured.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active_pid IS NOT NULL",
                [slot],
            )
            try:
                captured.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            except Exception:
                return False
            return True

        wait_until(dropped, "the slot to be dropped")
        assert isinstance(running.failure(), SlotMissing)
        running.error = None


def test_the_slot_was_invalidated(make_server: MakeServer, make_captured: MakeCaptured) -> None:
    server = make_server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL")

    def lost() -> bool:
        captured.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))")
        captured.execute("SELECT pg_switch_wal()")
        captured.execute("CHECKPOINT")
        return captured.slot()["wal_status"] == "lost"

    wait_until(lost, "the slot to be invalidated")
    with pytest.raises(SlotInvalidated) as caught:
        captured.capture()
    assert "pgtide destroy" in caught.value.hint


def test_the_slot_was_advanced_past_the_log(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    captured.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())",
        [captured.config.source.slot],
    )
    with pytest.raises(SlotAdvanced, match="past the log"):
        captured.capture()


def test_the_log_of_another_database(
    make_captured: MakeCaptured, make_server: MakeServer, database: Database
) -> None:
    ours, other = make_captured(), make_captured(Database.create(make_server()))
    shutil.rmtree(ours.config.log.path)
    shutil.copytree(other.config.log.path, ours.config.log.path)
    with pytest.raises(OtherSource, match="another database") as caught:
        ours.capture()
    assert database.name in caught.value.detail


def test_the_server_is_behind_the_log(captured: Captured) -> None:
    log = captured.config.log
    writer = LogWriter(log.path, log.storage, captured.config.source.slot)
    writer.commit([], Lsn(writer.position + (1 << 40)), 1)
    with pytest.raises(SourceRewound):
        captured.capture()


def test_a_server_crash_moves_the_slot_back(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    server = make_server(fsync="on")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("CHECKPOINT")
    for number in range(3):
        captured.execute("INSERT INTO t VALUES (%s)", [number])
        captured.capture("live" if number % 2 else "bulk")
        server.restart("immediate")
        assert captured.confirmed() <= captured.log.position
    captured.capture()
    assert [after["id"] for _, _, after in captured.changes()] == ["0", "1", "2"]
    captured.check_log()


HISTORY = "1\t0/3000000\tno recovery target specified\n\n2\t0/5000000\tbefore x\n"


@pytest.mark.parametrize(
    ("ours", "now", "position", "fine"),
    [
        (1, 2, "0/2FFFFFF", True),
        (1, 2, "0/3000000", True),
        (1, 2, "0/3000001", False),
        (1, 3, "0/3000000", True),
        (2, 3, "0/4000000", True),
        (2, 3, "0/5000001", False),
        (4, 3, "0/1", False),
    ],
)
def test_timelines(ours: int, now: int, position: str, fine: bool) -> None:
    if fine:
        check_timeline(HISTORY, ours, now, Lsn.parse(position))
        return
    with pytest.raises(TimelineDiverged, match="promoted"):
        check_timeline(HISTORY, ours, now, Lsn.parse(position))


def test_a_timeline_without_history() -> None:
    with pytest.raises(TimelineDiverged):
        check_timeline("", 2, 1, Lsn(8))


# -- the publication ------------------------------------------------------------


@pytest.mark.parametrize("version", [16, 18])
@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_dropped_while_streaming(
    make_server: MakeServer, make_captured: MakeCaptured, gear: str, version: int
) -> None:
    captured = make_captured(Database.create(make_server(bundled_bin_dir(version))))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        before = captured.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        captured.execute(f"DROP PUBLICATION {captured.config.source.slot}")
        captured.execute("INSERT INTO t VALUES (2)")
        captured.execute("INSERT INTO t VALUES (3)")
        assert isinstance(running.failure(), PublicationMissing)
        running.error = None
    # What the server skipped is not vouched for.
    assert captured.log.position <= Lsn.parse(before) + 8192
    after = flushed(captured.database)
    assert captured.log.position < after
    with pytest.raises(PublicationMissing):
        captured.capture()


@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_altered_while_streaming(captured: Captured, gear: str) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        captured.execute(f"ALTER PUBLICATION {captured.config.source.slot} SET (publish='insert')")
        captured.execute("DELETE FROM t")
        error = running.failure()
        running.error = None
    assert isinstance(error, PublicationChanged)
    assert "pgtide init" in error.hint


@pytest.mark.parametrize("gear", GEARS)
def test_without_ddl_messages_the_publication_is_looked_at_before_every_commit(
    make_captured: MakeCaptured, database: Database, gear: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    captured = make_captured(ddl=False)
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        captured.execute(f"ALTER PUBLICATION {captured.config.source.slot} SET (publish='insert')")
        ((altered,),) = captured.execute("SELECT pg_current_wal_flush_lsn()::text")
        captured.execute("DELETE FROM t")
        captured.execute("INSERT INTO t VALUES (2)")
        assert isinstance(running.failure(), PublicationChanged)
        running.error = None
    assert captured.log.position <= Lsn.parse(altered)


# -- feedback, stopping and catching up -------------------------------------------


def test_a_slow_flush_does_not_lose_the_connection(
    make_server: MakeServer, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(wal_sender_timeout="1s")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    commit, slow = LogWriter.commit, threading.Event()

    def slowly(self: LogWriter, *args: object) -> None:
        slow.wait(1.5)
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(LogWriter, "commit", slowly)
    with captured.capturing("live") as running:
        captured.execute("INSERT INTO t VALUES (1)")
        running.wait(flushed(captured.database))
        slow.set()
    assert running.progress.last_error is None
    assert len(captured.events("insert")) == 1


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
        monkeypatch.setattr(session, "BULK_TIMEOUT_MS", 20)
    url = database.create_role("LOGIN REPLICATION")
    captured = make_captured(url=url, admin_url=database.url)
    captured.execute(f"ALTER ROLE {database.roles[0]} SET {setting}")
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 30000) n")
    progress = captured.capture()
    assert progress.last_error is None
    assert len(captured.check_log()) == 30_000 + 1


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
