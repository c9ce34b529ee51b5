"""A log replayed into a second database, event by event: what DDL needs around it, no more."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from psycopg import sql

from pgtide.log.event import UNCHANGED, Event
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.postgres.connection import SqlConnection, connect
from pgtide.postgres.embedded import BUNDLED, bundled_bin_dir
from pgtide.sinks.postgres.ddl import Place, Replay, plan_ddl
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.ddl_names import Names
from pgtide.sinks.postgres.ddl_run import run_ddl
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.fixtures.waiting import wait_until
from tests.sinks.postgres.ddl_scripts import Script

# pgtide's own at the source, and what pg_dump makes up anew each time.
_NOISE = re.compile(
    r"^(--.*|SET .*|\\(un)?restrict .*|.*EVENT TRIGGER.*|.*REPLICA IDENTITY.*|)\n", re.MULTILINE
)
_OWN_TRIGGERS = re.compile(r"CREATE EVENT TRIGGER[^;]*;\n")


@contextmanager
def second_database(server: Server) -> Iterator[Database]:
    database = Database.create(server)
    try:
        yield database
    finally:
        database.drop()


def run_script(database: Database, script: Script) -> None:
    """Run the statements of a script."""
    with database.connect() as connection:
        for statement in script:
            if isinstance(statement, str):
                connection.execute(statement.encode())
                continue
            with connection.transaction():
                for part in statement:
                    connection.execute(part.encode())


def capture_all(captured: Captured) -> None:
    """Capture until tables that DDL rewrote have been read again as well."""
    store = RefreshStore(Storage(captured.config.log.path))

    def is_done() -> bool:
        captured.capture()
        return not any(store.is_open(request.id) for request in store.requests())

    wait_until(is_done, "tables to be read again")


@dataclass
class Replica:
    """A target that takes the events of a log."""

    database: Database
    kinds: DdlKinds = field(default_factory=lambda: DdlKinds(["*"]))
    names: Names = field(default_factory=Names)
    replays: list[Replay] = field(default_factory=list)

    def apply(self, events: Sequence[Event]) -> None:
        """All events in as few transactions as DDL lets there be: one, mostly."""
        with connect(self.database.url, autocommit=False) as connection:
            connection.execute("SET CONSTRAINTS ALL DEFERRED")
            for _, transaction in groupby(events, key=lambda event: event.position.lsn):
                if self._transaction(connection, list(transaction)):
                    connection.commit()

    def _transaction(self, connection: SqlConnection, events: list[Event]) -> bool:
        planned = {event.position: self._plan(event) for event in events if event.op == "ddl"}
        early = {replay.rows_of: replay for replay in planned.values() if replay.rows_of}
        for event in events:
            replay = planned.get(event.position)
            if replay is None and event.shape is not None:
                replay = early.get(event.shape.oid)
            if replay is not None and replay not in self.replays:
                run_ddl(connection, replay, Place("replica", event.position))
                self.replays.append(replay)
            if event.op in ("insert", "read", "update", "delete"):
                self._row(connection, event)
        return any(replay.commit_after for replay in planned.values())

    def _plan(self, event: Event) -> Replay:
        assert event.payload is not None
        return plan_ddl(event.payload, self.kinds, self.names, Place("replica", event.position))

    def _row(self, connection: SqlConnection, event: Event) -> None:
        assert event.shape is not None
        assert event.schema is not None
        assert event.table is not None
        table = sql.Identifier(*self.names.target((event.schema, event.table)))
        keys = [event.shape.columns[index].name for index in event.shape.keys]
        old = event.before or event.after or {}
        key: Mapping[str, object] = {name: old[name] for name in keys or old}
        if event.op != "insert":
            where = sql.SQL(" AND ").join(
                sql.SQL("{}::text IS NOT DISTINCT FROM {}").format(
                    sql.Identifier(name), sql.Literal(value)
                )
                for name, value in key.items()
            )
            connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, where))
        if event.after is None:
            return
        generated = {column.name for column in event.shape.columns if column.generated}
        row = {name: value for name, value in event.after.items() if name not in generated}
        assert UNCHANGED not in row.values()
        query = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
            table,
            sql.SQL(", ").join(map(sql.Identifier, row)),
            sql.SQL(", ").join(map(sql.Literal, row.values())),
        )
        connection.execute(query)


def schema_of(database: Database) -> str:
    """Everything in the catalog, as pg_dump prints it."""
    dump = [
        str(bundled_bin_dir(max(BUNDLED)) / "pg_dump"),  # it reads every older release
        *("--schema-only", "--no-owner", "--no-privileges", "--no-publications"),
        *("--exclude-schema=pgtide", database.url),
    ]
    printed = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    return _NOISE.sub("", _OWN_TRIGGERS.sub("", printed))


def rows_of(database: Database) -> dict[str, list[tuple[str]]]:
    """The rows of every logged table and materialized view, in order."""
    tables = database.execute(
        """SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
           WHERE relkind IN ('r', 'm') AND relpersistence = 'p' AND nspname NOT LIKE 'pg\\_%'
             AND nspname NOT IN ('pgtide', 'information_schema') ORDER BY 1"""
    )
    return {
        name: [(row[0],) for row in database.execute(f"SELECT t::text FROM {name} t ORDER BY 1")]
        for (name,) in tables
    }
