"""Killed at any moment, started again: the log equals what Postgres committed, once each."""

from __future__ import annotations

import json
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pgtide.position import Lsn
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.waiting import wait_until
from tests.fixtures.workload import Workload, check_workload

GEARS = ("live", "bulk")

# Small enough that every path is taken: parts of transactions, several chunks, both gears.
SMALL: dict[str, Any] = {
    "capture__receive__CHUNK_BYTES": 16_384,
    "capture__bulk__BULK_MESSAGES": 300,
    "capture__flow__IDLE_COMMIT_INTERVAL_S": 0.05,
}
SWITCHING: dict[str, Any] = {
    **SMALL,
    "capture__session__BULK_ENTER_BYTES": 30_000,
    "capture__session__BULK_LEAVE_BYTES": 10_000,
    "capture__session__LAG_INTERVAL_S": 0.0,
}
LARGE = "INSERT INTO series SELECT generate_series(%s::int, %s)"


# A record between a command and the rows behind it, see test_schema_changes.
APART = "SELECT pg_logical_emit_message(true, 'pgtide.heartbeat', '')"


def make_workload_log(make_captured: MakeCaptured) -> Captured:
    captured = make_captured(log={"buffer": "64kB", "flush_interval": "20ms"})
    captured.execute(Workload.TABLES)
    return captured


def finish(captured: Captured, gear: str | None) -> None:
    """Capture to the end, and compare."""
    captured.capture(gear)
    assert check_workload(captured) > 100
    large = [
        row["after"][0]
        for row in captured.rows()
        if (row["op"], row["table"]) == ("insert", "series")
    ]
    held = captured.execute("SELECT number::text FROM series ORDER BY series.number")
    assert large == [number for (number,) in held]


@pytest.mark.parametrize(
    ("point", "gear"),
    [
        ("after_receive", "live"),
        ("in_large_transaction", "bulk"),
        ("after_data_file", "live"),
        ("after_commit", "bulk"),
        ("after_confirm", "live"),
        pytest.param("after_receive", "bulk", marks=pytest.mark.slow),
        pytest.param("in_large_transaction", "live", marks=pytest.mark.slow),
        pytest.param("after_data_file", "bulk", marks=pytest.mark.slow),
        pytest.param("after_commit", "live", marks=pytest.mark.slow),
        pytest.param("after_confirm", "bulk", marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_fault_point(make_captured: MakeCaptured, point: str, gear: str) -> None:
    captured = make_workload_log(make_captured)
    with Workload(captured.database):
        for count in (1, 3):
            first = count * 10_000
            captured.execute(LARGE, [first, first + 5_999])  # more than three parts in any case
            captured.killed(gear, f"{point}:{count}", **SMALL)
    finish(captured, "bulk" if gear == "live" else "live")


def burst(captured: Captured, number: int) -> None:
    """One transaction of 500 kB, most of it in one record: the lag has no values in between."""
    with captured.database.connect() as connection, connection.transaction():
        connection.execute(LARGE.encode(), [number * 1000, number * 1000 + 99])
        connection.execute("SELECT pg_logical_emit_message(true, 'app', repeat('x', 500000))")


def behind(captured: Captured) -> int:
    """WAL that is not in the log."""
    ((end,),) = captured.execute("SELECT pg_current_wal_flush_lsn()::text")
    return Lsn.parse(end) - captured.log.position


def die_while_switching(captured: Captured, count: int) -> str:
    """A backlog, for the bulk gear, then a burst for the live one: the gear that ended last.

    The process dies when a gear ends for the ``count``-th time.
    """
    captured.capture("live")
    burst(captured, 2 * count)
    # capture.json is written at every turn, so that it shows each gear.
    often = {"capture__progress__LOCAL_INTERVAL_S": 0.0}
    process = captured.fork(None, f"switching_gear:{count}", **SWITCHING, **often)

    def gear() -> str:
        told = json.loads((captured.directory / "log" / "capture.json").read_text())
        return str(told["gear"]) if told["pid"] == process.pid else "none yet"

    if count > 1:
        wait_until(lambda: gear() == "live", "the end of the backlog")
        burst(captured, 2 * count + 1)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL, captured.output()
    last = gear()
    process.close()
    return last


def test_killed_in_the_middle_of_a_switch(make_captured: MakeCaptured) -> None:
    captured = make_workload_log(make_captured)
    with Workload(captured.database, limit=50) as workload:
        workload.join()

    assert die_while_switching(captured, 1) == "bulk"
    assert behind(captured) < SWITCHING["capture__session__BULK_ENTER_BYTES"], "on the way to live"

    assert die_while_switching(captured, 2) == "live"
    assert behind(captured) > SWITCHING["capture__session__BULK_ENTER_BYTES"], "on the way to bulk"
    finish(captured, None)


@pytest.mark.parametrize("gear", GEARS)
def test_a_large_transaction_is_there_whole_or_not_at_all(
    make_captured: MakeCaptured, gear: str
) -> None:
    captured = make_captured(log={"buffer": "64kB"})
    captured.execute("CREATE TABLE big (id int PRIMARY KEY, v text)")
    captured.capture()
    before = captured.log.position
    captured.execute("INSERT INTO big SELECT n, md5(n::text) FROM generate_series(1, 20000) n")
    captured.killed(gear, "in_large_transaction:4", **SMALL)
    parts = list((captured.directory / "log" / "changes").glob("day=*/*.parquet"))
    assert len(parts) > 3, "parts are on disk, but no commit names them"
    assert captured.events("insert") == []
    assert captured.log.position >= before
    captured.capture(gear)
    rows = captured.check_log()
    assert [row["after"][0] for row in rows if row["op"] == "insert"] == [
        str(n) for n in range(1, 20_001)
    ]


def test_a_transaction_that_comes_again_finds_its_tables_as_they_were(
    make_captured: MakeCaptured,
) -> None:
    """Shapes of a transaction that was cut off do not describe its earlier rows."""
    captured = make_captured(log={"buffer": "64kB", "flush_interval": "10ms"})
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    captured.execute("INSERT INTO t VALUES (-2, 'x')")
    with captured.database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO t VALUES (-1, 'y')")
        connection.execute("ALTER TABLE t RENAME COLUMN a TO b")
        connection.execute(APART)
        connection.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 5000) n")
        connection.execute("ALTER TABLE t DROP COLUMN b")
        connection.execute(APART)
        connection.execute("INSERT INTO t SELECT n FROM generate_series(5001, 10000) n")
    for count in (1, 3, 5, 7):
        captured.killed("live", f"in_large_transaction:{count}", **SMALL)
    captured.capture("live")
    captured.check_log()
    seen: dict[tuple[str, ...], int] = {}
    for event in captured.events("insert"):
        assert event.shape is not None
        assert [column.attnum for column in event.shape.columns] == [1, 2][: len(event.after or ())]
        names = tuple(event.after or ())
        seen[names] = seen.get(names, 0) + 1
    assert seen == {("id", "a"): 2, ("id", "b"): 5000, ("id",): 5000}
    shapes = [s for s in captured.log.shapes().values() if s.table == "t"]
    assert len(shapes) == 3, "each shape has one id"


def listens(pid: int | None) -> bool:
    """Whether a process has a handler for SIGTERM, which ends it where it is before that."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def kill_at_random(captured: Captured, kills: int, seed: int) -> None:
    """Start captures in random gears under load and kill them at random moments."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    with Workload(captured.database, sessions=2):
        for count in range(kills):
            gear = choose.choice([*GEARS, None, None])
            process = captured.fork(gear, **SWITCHING)
            if choose.random() < 0.5:
                first = 10_000 * (count + 1)
                captured.execute(LARGE, [first, first + choose.randrange(500, 4000)])
            time.sleep(choose.uniform(0.0, 1.2))
            if choose.random() < 0.2:
                wait_until(partial(listens, process.pid), "the capture to listen to signals")
                process.terminate()
                process.join(20)
            process.kill()
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL), captured.output()
            process.close()
    finish(captured, choose.choice(GEARS))


def test_killed_at_random_moments(make_captured: MakeCaptured) -> None:
    kill_at_random(make_workload_log(make_captured), 5, random.randrange(1 << 32))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_random_moments_for_long(make_captured: MakeCaptured) -> None:
    kill_at_random(make_workload_log(make_captured), 40, random.randrange(1 << 32))


def test_killed_by_the_environment(captured: Captured) -> None:
    """The fault point of a real command, as the variable names it."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (1)")
    process = captured.spawn(fault="after_commit:1")
    assert process.wait(30) == -signal.SIGKILL
    assert [e.op for e in captured.events()] == ["ddl", "insert"]
    assert captured.confirmed() < captured.log.position
    captured.capture()
    assert [e.op for e in captured.events()] == ["ddl", "insert"]


def test_confirmed_is_never_ahead_of_the_log(make_captured: MakeCaptured) -> None:
    """I1, looked at from outside while everything runs."""
    captured = make_workload_log(make_captured)
    with Workload(captured.database), captured.capturing() as running:
        for _ in range(30):
            confirmed = captured.confirmed()  # before the log: both only grow
            assert confirmed <= captured.log.position
            captured.execute("SELECT 1")
        wait_until(lambda: running.progress.commits > 3, "a few commits")
    assert captured.log.position > Lsn(0)
    finish(captured, None)
