"""What others do while a snapshot is taken, and where it may die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import pgtide
from pgtide.config import Config
from pgtide.errors import LogError, SlotBusy, SourceExhausted, SourceUnavailable
from pgtide.snapshot import initial, keeper, need
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.progress import SnapshotProgress
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.snapshot.taking import reads, source, state, take

PACE_S = 0.005  # between the turns of a session
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, n int, big text);
INSERT INTO t SELECT k, 0, (SELECT string_agg(md5(n::text || k), '') FROM generate_series(1, 99) n)
    FROM generate_series(1, 300) k;
"""


class Writers:
    """Sessions that insert, update, delete, change keys and leave large values alone."""

    def __init__(self, database: Database, sessions: int = 3) -> None:
        self._database = database
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(sessions)
        ]
        self.transactions = 0

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self._errors:
            raise self._errors[0]

    def _run(self, number: int) -> None:
        try:
            with self._database.connect() as conn:
                turn = 0
                while not self._stop.is_set():
                    turn += 1
                    for statement in self._statements(number, turn):
                        conn.execute(statement.encode())
                    self.transactions += 1
                    self._stop.wait(PACE_S)
        except BaseException as error:
            self._errors.append(error)

    def _statements(self, number: int, turn: int) -> list[str]:
        key, new = 1 + number * 100 + turn % 100, 1_000_000 * (number + 1) + turn
        return [
            f"UPDATE t SET n = n + 1 WHERE id = {key}",
            f"BEGIN; INSERT INTO t VALUES ({new}, 0, repeat('x', 3000));"
            f" UPDATE t SET n = 1 WHERE id = {new}; COMMIT",
            f"UPDATE t SET id = -id WHERE id = {new} AND {turn} % 2 = 0",
            f"DELETE FROM t WHERE id = {new} AND {turn} % 3 = 0",
            f"BEGIN; UPDATE t SET n = -1 WHERE id = {key}; ROLLBACK",
            f"UPDATE t SET big = repeat(md5({turn}::text), 90) WHERE id = {key} AND {turn} % 5 = 0",
        ]


def expected(captured: Captured) -> dict[str, list[str | None]]:
    return {row[0]: list(row) for row in captured.execute("SELECT id::text, n::text, big FROM t")}


def test_under_load(make_captured: MakeCaptured, database: Database, spark: SparkSession) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    with Writers(database) as writers:
        for attempt in range(3):  # the first on an empty log, then behind changes
            take(captured, spark, chunk_bytes="64kB")
            captured.check_log()
            if attempt % 2:
                captured.capture()
        assert writers.transactions > 50
    captured.capture()
    captured.check_log()
    assert state(captured, "t") == expected(captured)
    latest = pgtide.latest(spark, captured.config.log.path, "t").select("id", "n", "big").collect()
    assert {str(row.id): [str(row.id), str(row.n), row.big] for row in latest} == expected(captured)


def test_a_commit_at_the_very_point(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, n int, big text)")
    captured = make_captured(database, snapshot="initial")
    points = []
    with Writers(database, sessions=4):
        for _ in range(12):
            points.append(take(captured, spark).point)
    captured.capture()
    rows = captured.check_log()
    assert sum(point - 1 == row["lsn"] and row["last"] for point in points for row in rows) == 12


@pytest.mark.parametrize(
    "statement",
    ["VACUUM FULL t", "ALTER TABLE t ALTER n TYPE bigint", "TRUNCATE t", "DROP TABLE t"],
)
def test_what_would_take_rows_away_waits(
    make_captured: MakeCaptured, database: Database, spark: SparkSession, statement: str
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    before = source(captured, "SELECT id::text, n::text, big FROM t")
    refused: list[str] = []

    def interfere(progress: SnapshotProgress) -> None:
        if progress.stage == "copying" and not refused:
            with database.connect() as conn:
                conn.execute("SET lock_timeout = '50ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    conn.execute(statement.encode())
            refused.append(statement)

    take(captured, spark, on_progress=interfere, chunk_bytes="64kB")
    assert refused
    assert reads(captured, "t") == before
    database.execute(statement)
    captured.capture()
    captured.check_log()


SWAP = (("blue", "aside"), ("green", "blue"), ("aside", "green"))


@pytest.mark.parametrize("renames", [SWAP, SWAP[:1]], ids=["swapped", "renamed"])
def test_schemas_that_get_other_names_meanwhile(
    make_captured: MakeCaptured,
    database: Database,
    spark: SparkSession,
    renames: Sequence[tuple[str, str]],
) -> None:
    """No lock on a table keeps anybody from that, and tables are read by name."""
    for schema in ("blue", "green"):
        database.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (c text PRIMARY KEY)")
        database.execute(f"INSERT INTO {schema}.t SELECT '{schema}' || generate_series(1, 3)")
    captured = make_captured(database, snapshot="initial")
    left = list(renames)

    def rename(progress: SnapshotProgress) -> None:
        while progress.stage == "copying" and left:
            old, new = left.pop(0)
            database.execute(f"ALTER SCHEMA {old} RENAME TO {new}")

    with pytest.raises(SourceUnavailable, match="renamed"):
        take(captured, spark, on_progress=rename)
    assert captured.rows() == []
    take(captured, spark)
    found = {(row["schema"], *row["after"]) for row in captured.rows() if row["op"] == "read"}
    schemas = ("blue", "green") if renames == SWAP else ("aside", "green")
    assert found == {
        (schema, c) for schema in schemas for (c,) in database.execute(f"SELECT c FROM {schema}.t")
    }


def test_a_table_that_is_not_free(
    make_captured: MakeCaptured,
    database: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeper, "LOCK_TIMEOUT", "100ms")
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    with database.connect(autocommit=False) as conn:
        conn.execute("LOCK TABLE t")
        with pytest.raises(SourceExhausted, match="not free"):
            take(captured, spark)
    take(captured, spark)


def test_a_table_that_comes_between_list_and_lock(
    make_captured: MakeCaptured,
    database: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    locked: list[str] = []

    def when(name: str) -> None:
        locked.append(name)
        if locked.count("snapshot_locked") == 1 and name == "snapshot_locked":
            database.execute("CREATE TABLE late (id int PRIMARY KEY)")
            database.execute("INSERT INTO late VALUES (1)")

    monkeypatch.setattr(keeper, "fault", when)
    take(captured, spark)
    assert locked.count("snapshot_locked") == 2
    assert reads(captured, "late") == [["1"]]


class Died(BaseException):
    """As if the process had been killed, but this one goes on."""


POINTS = (
    "snapshot_locked",
    "snapshot_exported",
    "snapshot_shapes",
    "snapshot_copied",
    "snapshot_written",
    "snapshot_committed",
)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_dying_anywhere_loses_and_doubles_nothing(
    make_captured: MakeCaptured,
    database: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    begun: bool,
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    if begun:
        database.execute("UPDATE t SET n = 1 WHERE id = 1")
        captured.capture()
    with monkeypatch.context() as patch:
        for module in (keeper, initial):
            patch.setattr(module, "fault", _dying_at(point))
        with pytest.raises(Died):
            take(captured, spark)
    database.execute("UPDATE t SET n = 2 WHERE id = 2")
    database.execute("DELETE FROM t WHERE id = 3")
    due = point != "snapshot_committed"
    assert bool(captured.log.snapshot().history) is not due
    if due:
        take(captured, spark)
    captured.capture()
    captured.check_log()
    assert state(captured, "t") == expected(captured)
    assert len({row["lsn"] for row in captured.rows() if row["op"] == "read"}) == 1


def _dying_at(point: str) -> Callable[[str], None]:
    def fault(name: str) -> None:
        if name == point:
            raise Died

    return fault


def test_stopped_without_a_trace(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    for stage in ("locking", "copying"):
        stop = threading.Event()

        def on_progress(progress: SnapshotProgress, stage: str = stage, stop: Any = stop) -> None:
            if progress.stage == stage:
                stop.set()

        snapshot = InitialSnapshot(captured.config, spark, stop=stop, on_progress=on_progress)
        assert not snapshot.take()
        assert captured.rows() == []
    take(captured, spark)


def test_a_slot_that_cannot_be_advanced_at_the_end(
    make_captured: MakeCaptured,
    database: Database,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows are in the log: reading them all again would help nobody."""
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")

    def fail(*_: object) -> None:
        raise SlotBusy("the slot is in use")

    monkeypatch.setattr(initial, "advance", fail)
    take(captured, spark)
    captured.execute("INSERT INTO t VALUES (1000, 0, '')")
    captured.capture()
    assert len(state(captured, "t")) == 301


def test_a_slot_that_waits_can_be_stopped(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    stop = threading.Event()
    snapshot = InitialSnapshot(captured.config, spark, stop=stop)
    with database.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO t VALUES (0)")
        timer = threading.Timer(1.0, stop.set)
        timer.start()
        assert not snapshot.take()
        timer.join()


def test_while_a_capture_runs(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    with captured.capturing() as running:
        running.wait(captured.log.position)
        with pytest.raises(SlotBusy) as caught:
            take(captured, spark)
    assert "pgtide refresh" in caught.value.hint


def test_when_one_is_due(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(TABLE)
    captured = make_captured(database, snapshot="initial")
    never = Config.model_validate(
        {**captured.settings, "source": {**captured.settings["source"], "snapshot": "never"}}
    )
    assert need.snapshot_due(captured.config)
    assert not need.snapshot_due(never)
    captured.capture()  # nothing was published since
    assert need.snapshot_due(captured.config)
    database.execute("UPDATE t SET n = 1 WHERE id = 1")
    captured.capture()
    with pytest.raises(LogError, match="not the rows") as caught:
        need.snapshot_due(captured.config)
    assert "pgtide snapshot" in caught.value.hint
    assert not need.snapshot_due(never)
    take(captured, spark, "t", where={"public.t": "id > 0"})  # a part is not all
    with pytest.raises(LogError, match="not the rows"):
        need.snapshot_due(captured.config)
    take(captured, spark)
    assert not need.snapshot_due(captured.config)


def test_a_log_that_has_changes_is_swept(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    database.execute("CREATE TABLE keyless (id int)")
    captured = make_captured(database, snapshot="initial", keyless="full")
    for table in ("keyed", "keyless"):
        database.execute(f"INSERT INTO {table} VALUES (1), (2)")
    captured.capture()
    database.execute("DELETE FROM keyed WHERE id = 1")
    progress = take(captured, spark)
    rows = [row for row in captured.check_log() if row["lsn"] == progress.point - 1]
    ops = [(row["op"], row["table"]) for row in rows]
    assert ops == [
        ("sweep", "keyless"),
        ("read", "keyed"),
        *[("read", "keyless")] * 2,
        ("sweep", "keyed"),
        ("message", None),
    ]
    assert captured.log.position == progress.point
    take(captured, spark, "keyed", where={"public.keyed": "id > 0"})
    assert [row["op"] for row in captured.check_log()].count("sweep") == 2
