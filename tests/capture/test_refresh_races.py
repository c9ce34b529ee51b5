"""Changes at every moment of a refresh: what is in the log afterwards is what the source has.

Each moment is tried with each kind of change in each kind of transaction, on keys of their own,
in one refresh.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgtide.capture import faults
from pgtide.log.refreshes import Refresh
from pgtide.postgres.embedded import bundled_bin_dir
from pgtide.postgres.visibility import Visibility
from tests.capture.replayed import replay
from tests.capture.test_refresh import refresh, store_of, wait_for
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until

POINTS = (
    "refresh_before_low",
    "refresh_after_low",
    "refresh_before_read",
    "refresh_after_read",
    "refresh_after_high",
)
CHANGES = {
    "insert": "INSERT INTO t VALUES ({new}, 1, repeat('n', 10), {big})",
    "update": "UPDATE t SET n = n + 1, v = 'u', big = {big} WHERE id = {id}",
    "toast": "UPDATE t SET n = n + 1 WHERE id = {id}",
    "move": "UPDATE t SET id = {new}, n = n + 1 WHERE id = {id}",
    "move back": "UPDATE t SET id = {low}, n = n + 1 WHERE id = {id}",
    "delete": "DELETE FROM t WHERE id = {id}",
    "replace": "DELETE FROM t WHERE id = {id}; INSERT INTO t VALUES ({id}, 0, 'again', {big})",
}
KINDS = ("autocommit", "long", "subtransaction", "rollback")
BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200))"
ROWS = 3000


@dataclass
class Writers:
    """Makes the changes; long transactions begin before the refresh and end after a point."""

    database: Database
    next_id: Iterator[int] = field(default_factory=lambda: iter(range(10, ROWS, 7)))
    long: dict[str, psycopg.Connection[Any]] = field(default_factory=dict)

    def statement(self, change: str) -> bytes:
        id = next(self.next_id)
        values = {"id": id, "new": 100_000 + id, "low": -id, "big": BIG}
        return CHANGES[change].format(**values).encode()

    def begin_long(self, point: str) -> None:
        connection = self.database.connect(autocommit=False)
        for change in CHANGES:
            for statement in self.statement(change).split(b"; "):
                connection.execute(statement)
        self.long[point] = connection

    def change(self, point: str) -> None:
        """Everything that happens at a point, once."""
        with self.database.connect() as connection:
            for change, kind in product(CHANGES, KINDS):
                if kind == "autocommit":
                    connection.execute(self.statement(change))
                elif kind == "subtransaction":
                    with connection.transaction(), connection.transaction():
                        connection.execute(self.statement(change))
                elif kind == "rollback":
                    with connection.transaction():
                        connection.execute(self.statement(change))
                        raise psycopg.Rollback
        self.end_long(point)

    def end_long(self, point: str) -> None:
        with self.long.pop(point):
            pass  # which commits and closes

    def close(self) -> None:
        for connection in self.long.values():
            connection.close()


@pytest.fixture
def at_points() -> Iterator[dict[str, Callable[[], None]]]:
    yield faults.at_point
    faults.at_point.clear()


@pytest.fixture
def writers(database: Database) -> Iterator[Writers]:
    made = Writers(database)
    yield made
    made.close()


@pytest.fixture
def big_rows(database: Database, make_captured: MakeCaptured) -> Captured:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text, big text)")
    database.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    database.execute(
        "INSERT INTO t SELECT i, 0, 'v' || i,"
        " CASE WHEN i % 7 = 3 THEN repeat(md5(i::text), 100) END"
        f" FROM generate_series(1, {ROWS}) i"
    )
    return make_captured()


def once(action: Callable[[], None]) -> Callable[[], None]:
    lock, left = threading.Lock(), [action]

    def act() -> None:
        with lock:
            if left:
                left.pop()()

    return act


def same_as_source(captured: Captured) -> None:
    captured.check_log()
    expected = {
        (row["id"],): {name: row[name] for name in ("id", "n", "v", "big")}
        for (row,) in captured.execute(
            "SELECT jsonb_object_agg(key, value) FROM t, jsonb_each_text(to_jsonb(t)) GROUP BY t.id"
        )
    }
    found = replay(captured.events(), "t", ("id",))
    assert found.keys() == expected.keys()
    wrong = {key for key, row in expected.items() if not row.items() <= found[key].items()}
    assert not wrong, sorted(wrong)


@pytest.mark.parametrize("chunk_rows", [100, 100_000])
def test_changes_at_every_moment(
    big_rows: Captured,
    at_points: dict[str, Callable[[], None]],
    writers: Writers,
    chunk_rows: int,
) -> None:
    for point in POINTS:
        writers.begin_long(point)
        at_points[point] = once(partial(writers.change, point))
    request = refresh(big_rows, chunk_rows=chunk_rows)
    with big_rows.capturing() as running:
        wait_until(lambda: store_of(big_rows).standing(request.id).state == "done", "the refresh")
        assert not writers.long, "every point was passed"
        running.wait(flushed(big_rows.database))
    same_as_source(big_rows)


DDL = (
    "TRUNCATE t",
    "TRUNCATE t; INSERT INTO t VALUES (1, 1, 'after', NULL)",
    "ALTER TABLE t ALTER n TYPE text USING 'n' || n",
    "ALTER TABLE t ALTER n TYPE int USING n + 1",
    "ALTER TABLE t ADD COLUMN more int DEFAULT 5; ALTER TABLE t DROP COLUMN more",
    "VACUUM FULL t",
    "CLUSTER t USING t_pkey",
)
# Each command once, and one of them at every moment.
IN_SHORT = {*product(DDL, ["refresh_after_read"]), *product([DDL[1]], POINTS)}


@pytest.mark.parametrize(
    ("statement", "point"),
    [
        pytest.param(*case, marks=() if case in IN_SHORT else pytest.mark.slow)
        for case in product(DDL, POINTS[1:])
    ],
)
def test_ddl_in_the_middle(
    big_rows: Captured, at_points: dict[str, Callable[[], None]], point: str, statement: str
) -> None:
    """What waits for our lock is started; the others happen there and then."""
    thread = threading.Thread(target=big_rows.run, args=[statement.replace("; ", ";\n")])
    at_points[point] = once(thread.start)
    refresh(big_rows, chunk_rows=500)
    with big_rows.capturing() as running:
        wait_until(lambda: thread.ident is not None, "the point")
        thread.join()
        running.wait(flushed(big_rows.database))
        wait_for(big_rows)
    same_as_source(big_rows)
    # The refresh that such DDL brings would hide rows of the old time that came behind it.
    commands = [event.position for event in big_rows.events("ddl")]
    held = dict(big_rows.execute("SELECT id::text, n::text FROM t"))
    later = [
        e.after or {} for e in big_rows.events("read") if commands and e.position > commands[-1]
    ]
    assert all(row["n"] == held[str(row["id"])] for row in later)


def require_standby(database: Database, name: str) -> None:
    database.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    database.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: database.execute("SHOW synchronous_standby_names") == [(name,)], "the setting"
    )


def versions(captured: Captured) -> list[object]:
    """What the log has of row 1, one after the other."""
    rows = [event.after or {} for event in captured.events("update", "read")]
    return [row["v"] for row in rows if row["id"] == "1"]


def test_a_commit_that_is_delivered_and_not_visible(
    make_server: MakeServer, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synchronous standby does not answer: the commit is in the WAL, and nobody sees it.

    Low and high watermarks around a read would bring the old row back behind the new one.
    """
    database = Database.create(make_server())
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text, big text)")
    database.execute("INSERT INTO t SELECT i, 0, 'old' FROM generate_series(1, 100) i")
    captured, naive = make_captured(database), make_captured(database)
    require_standby(database, "nobody")
    waiting = [
        threading.Thread(target=database.execute, args=[statement])
        for statement in (
            "UPDATE t SET v = 'new' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 1003 WHERE id = 3",
            "INSERT INTO t VALUES (2000, 0, 'new')",
        )
    ]
    try:
        with captured.capturing() as running:
            for thread in waiting[:2]:
                thread.start()
            wait_until(lambda: len(captured.events("update", "delete")) == 2, "both to be logged")
            assert database.execute("SELECT count(*) FROM t WHERE v = 'new'") == [(0,)]
            request = refresh(captured, chunk_rows=10, replace=True)
            for thread in waiting[2:]:
                thread.start()
            wait_for(captured)
            assert len(captured.events("read")) <= 100 - 2, "those two are newer in the log"
            assert store_of(captured).standing(request.id).dropped >= 2
            with monkeypatch.context() as patch:
                patch.setattr(Visibility, "hides", lambda self, xids: np.zeros(len(xids), bool))
                refresh(naive, chunk_rows=10)
                naive.capture()
            assert versions(naive)[-1] == "old", "it goes back in time"
            require_standby(database, "")
            for thread in waiting:
                thread.join(30)
            running.wait(flushed(database))
        same_as_source(captured)
        assert versions(captured) == ["new"]
    finally:
        require_standby(database, "")


def test_a_commit_record_right_behind_the_watermark(
    make_server: MakeServer,
    make_captured: MakeCaptured,
    at_points: dict[str, Callable[[], None]],
) -> None:
    """The LSN of a message is where it ends, which may be where a commit record begins."""
    database = Database.create(make_server(bundled_bin_dir(18)))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text, big text)")
    database.execute("INSERT INTO t SELECT i, 0, 'old' FROM generate_series(1, 10) i")
    captured = make_captured(database)
    with captured.capturing() as running, database.connect(autocommit=False) as writer:
        for n in range(1, 30):
            writer.execute("UPDATE t SET n = n + 1 WHERE id = 1")
            at_points["refresh_after_high"] = once(writer.commit)
            refresh(captured)
            wait_for(captured)
            running.wait(flushed(database))
            commits = {event.position.lsn for event in captured.events("update")}
            reads = {event.position.lsn for event in captured.events("read")}
            assert len(commits) == n
            if any(lsn + 1 in commits for lsn in reads):
                break
        else:
            pytest.fail("no commit record began where a watermark ended")
    same_as_source(captured)


def test_a_request_that_is_half_written(
    big_rows: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture looks while somebody asks, or somebody was killed while asking."""
    store, directory = store_of(big_rows), Path(big_rows.config.log.path) / "refresh"
    written, go_on, replace = threading.Event(), threading.Event(), os.replace

    def held(source: Path, target: Path) -> None:
        if threading.current_thread() is asking:
            written.set()
            go_on.wait(60)
        replace(source, target)

    monkeypatch.setattr(os, "replace", held)
    request = Refresh("public.t")
    asking = threading.Thread(target=store.add, args=[request])
    with big_rows.capturing() as running:
        asking.start()
        assert written.wait(30)
        (half,) = directory.iterdir()
        assert store.requests() == []
        killed = half.with_name(half.name.replace(request.id, "killed"))
        killed.write_bytes(half.read_bytes())
        refresh(big_rows, keys=(("1",),))
        wait_for(big_rows)
        go_on.set()
        asking.join()
        wait_for(big_rows)
        running.wait(flushed(big_rows.database))
    assert store.standing(request.id).state == "done"
    same_as_source(big_rows)
