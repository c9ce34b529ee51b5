"""A small sink for tests: brings transactions of the log into another database, as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from psycopg import sql

from pgtide.log.event import UNCHANGED, Event, Value
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection, connect
from pgtide.sinks.postgres.bookkeeping import prepare, write_progress
from tests.verify.replica import NAME, Replica

PAUSE_S = 0.02


class Follower(threading.Thread):
    """All complete transactions that are new, in one transaction together with the progress."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(daemon=True)
        self._replica = replica
        self._log = replica.captured.log
        self._next = Position(Lsn(0))
        self.ending = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with connect(self._replica.database.url) as connection:
                prepare(connection)
                while not self.ending.wait(PAUSE_S):
                    self._step(connection)
        except BaseException as error:
            self.error = error

    def _step(self, connection: SqlConnection) -> None:
        events = list(self._log.events(self._next))
        while events and not events[-1].last:
            events.pop()
        if not events:
            return
        with connection.transaction():
            for event in events:
                for statement in statements(event):
                    connection.execute(statement)
            write_progress(connection, NAME, events[-1].position, "log")
        self._next = events[-1].position.next


def statements(event: Event) -> Iterator[sql.Composed]:
    """What an event does, key by key; rows without a key are found by all of their values."""
    if event.table is None or event.shape is None:
        return
    table = sql.Identifier(event.schema or "", event.table)
    if event.op == "truncate":
        yield sql.SQL("TRUNCATE {}").format(table)
        return
    sent = {n: v for n, v in (event.after or {}).items() if v is not UNCHANGED}
    names = sql.SQL(", ").join(map(sql.Identifier, sent))
    values = sql.SQL(", ").join(map(sql.Literal, sent.values()))
    keys = [event.shape.columns[index].name for index in event.shape.keys]
    old = event.before or {name: sent[name] for name in keys if name in sent}
    one = sql.SQL("ctid = (SELECT min(ctid) FROM {} WHERE {})").format(table, _same(old))
    if event.op in ("insert", "read"):
        yield sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(table, names, values)
    elif event.op == "delete":
        yield sql.SQL("DELETE FROM {} WHERE {}").format(table, one)
    elif event.op == "update":
        row = sql.SQL("ROW({})").format(values)
        yield sql.SQL("UPDATE {} SET ({}) = {} WHERE {}").format(table, names, row, one)


def _same(row: Mapping[str, Value]) -> sql.Composable:
    return sql.SQL(" AND ").join(
        sql.SQL("{} IS NOT DISTINCT FROM {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in row.items()
    )


@contextmanager
def following(replica: Replica) -> Iterator[Follower]:
    """Capture and follow, each in a thread."""
    follower = Follower(replica)
    with replica.captured.capturing():
        follower.start()
        try:
            yield follower
        finally:
            follower.ending.set()
            follower.join(30)
    if follower.error is not None:
        raise follower.error
