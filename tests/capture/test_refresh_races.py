"""Changes at every moment of a refresh: what is in the log afterwards is what the source has.

Each moment is tried with each kind of change in each kind of transaction, on keys of their own,
in one refresh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import psycopg
import pytest

from pgtide.capture import faults
from tests.capture.replayed import replay
from tests.capture.test_refresh import refresh, store_of
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
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
    names = ("id", "n", "v", "big")
    expected = {
        (row[0],): dict(zip(names, row, strict=True))
        for row in captured.execute("SELECT id::text, n::text, v, big FROM t")
    }
    found = replay(captured.events(), "t", ("id",))
    assert found.keys() == expected.keys()
    wrong = {key for key, row in expected.items() if found[key] != row}
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
        at_points[point] = once(lambda point=point: writers.change(point))
    request = refresh(big_rows, chunk_rows=chunk_rows)
    with big_rows.capturing() as running:
        wait_until(lambda: store_of(big_rows).standing(request.id).state == "done", "the refresh")
        assert not writers.long, "every point was passed"
        running.wait(flushed(big_rows.database))
    same_as_source(big_rows)
