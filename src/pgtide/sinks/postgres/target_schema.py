"""The schema of a target: what of a dump is made there, whether it can be, and making it.

Everything before the rows is one transaction, together with the target's position and with the
statements that wait for the rows: so a target has all of that or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from pglast.parser import ParseError, parse_sql
from psycopg import sql

from pgtide.errors import SourceError, TargetError
from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres import bookkeeping
from pgtide.sinks.postgres.after_rows import (
    SETTINGS,
    set_locally,
    statement_failed,
    store_after_rows,
)
from pgtide.sinks.postgres.ddl_hiding import without_defaults
from pgtide.sinks.postgres.ddl_payload import TableName, quoted
from pgtide.sinks.postgres.dump_choice import Choice
from pgtide.sinks.postgres.dump_text import Entry, entries
from pgtide.sinks.postgres.source_parts import SourceParts

SHOWN = 10  # names in an error
_RELATIONS = ("TABLE", "VIEW", "MATERIALIZED VIEW", "SEQUENCE")
_OURS = ("client_encoding", *SETTINGS)  # set in another way


@dataclass(frozen=True)
class TargetSchema:
    """The statements that make a target, before and after the rows."""

    before: tuple[Entry, ...]
    after: tuple[Entry, ...]
    extensions: frozenset[str]  # without which nothing can be made
    notes: tuple[str, ...]  # what is left out, and why
    source_version: int  # server_version_num
    hidden: tuple[tuple[TableName, str], ...] = ()  # columns whose values rules change

    @classmethod
    def of(cls, before: str, after: str, parts: SourceParts, version: int) -> TargetSchema:
        """Choose from the two sections of a dump."""
        choice = Choice(parts)
        first = choice.of(entries(before))
        later = [entry for entry in choice.of(entries(after)) if entry.type]
        later += choice.refreshes([*first, *later])
        notes = (*parts.notes, *choice.notes)
        made = {(entry.schema, entry.name) for entry in first if entry.type == "TABLE"}
        if missing := sorted(f"{schema}.{table}" for schema, table in parts.tables - made):
            raise SourceError(
                "pg_dump did not tell of every table",
                detail=f"Its output lacks {_listed(missing)}.",
                hint="Set PGTIDE_PG_DUMP to a pg_dump of the source's own release.",
            )
        return cls(tuple(first), tuple(later), parts.extensions, notes, version)

    @property
    def tables(self) -> int:
        """How many tables are made."""
        return sum(entry.type == "TABLE" and entry.creates for entry in self.before)

    def check(self, connection: SqlConnection) -> None:
        """Refuse a target that has some of it already, or lacks what it needs."""
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            raise TargetError("the target is a standby", hint="Name the primary in sink.url.")
        self._refuse_existing(connection)
        self._refuse_lacking(
            "extensions",
            self.extensions
            - _names(connection, "SELECT name FROM pg_available_extensions")
            - _names(connection, "SELECT extname FROM pg_extension"),
            "Install them on the target's server (packages, and CREATE EXTENSION).",
        )
        self._refuse_lacking(
            "roles",
            _policy_roles(self.after) - _names(connection, "SELECT rolname FROM pg_roles"),
            "Policies of the source name them. At the target run CREATE ROLE for each.",
        )

    def make(self, connection: SqlConnection) -> list[str]:
        """Make what comes before the rows, in the caller's transaction; what was left out."""
        present = {
            "SCHEMA": _names(connection, "SELECT nspname FROM pg_namespace"),
            "EXTENSION": _names(connection, "SELECT extname FROM pg_extension"),
        }
        available = _names(connection, "SELECT name FROM pg_available_extensions")
        known = _names(connection, "SELECT name FROM pg_settings")
        set_locally(connection, SETTINGS)
        notes: list[str] = []
        for entry in self.before:
            if not entry.type:
                if entry.setting in known and entry.setting not in _OURS:
                    self._run(connection, entry, entry.statement.replace("SET ", "SET LOCAL ", 1))
            elif entry.name in present.get(entry.type, ()):
                continue
            elif entry.type == "EXTENSION" and entry.name not in available:
                notes.append(f"extension {entry.name}, which the target does not have")
            else:
                # Not even for a moment: servers log statements.
                self._run(connection, entry, without_defaults(entry.statement, self.hidden))
        for table, column in self.hidden:
            _drop_default(connection, table, column)
        return notes

    def rehearse(self, connection: SqlConnection) -> list[str]:
        """Make all of it, also what waits for rows, and take it back; what was left out."""
        with connection.transaction(force_rollback=True):
            notes = self.make(connection)
            for entry in self.after:
                self._run(connection, entry, entry.statement)
        return notes

    def begin(self, connection: SqlConnection, pipeline: str, position: Position, log: str) -> None:
        """Make it for good, in the caller's transaction, with what belongs to it."""
        bookkeeping.prepare(connection)
        bookkeeping.forget(connection, pipeline)
        self.make(connection)
        store_after_rows(connection, pipeline, [entry.statement for entry in self.after])
        bookkeeping.write_progress(connection, pipeline, position, log)

    # -- how it fails -------------------------------------------------------------------

    def _run(self, connection: SqlConnection, entry: Entry, statement: str) -> None:
        try:
            connection.execute(statement.encode())
        except psycopg.Error as exc:
            target, source = connection.info.server_version // 10_000, self.source_version // 10_000
            hint = "Put that right at the target, or at the source; then: pgtide snapshot --schema"
            if isinstance(exc, psycopg.errors.InsufficientPrivilege):
                hint = "Grant it to the role of sink.url: pgtide check says how"
            elif target < source:
                hint = (
                    f"The target is Postgres {target}, the source {source}: what only the newer "
                    "one knows cannot be copied. Use a newer target, or make the schema yourself."
                )
            raise statement_failed(exc, entry.described, hint) from exc

    def _refuse_existing(self, connection: SqlConnection) -> None:
        wanted = {
            (entry.schema, entry.name)
            for entry in (*self.before, *self.after)
            if entry.type in _RELATIONS and entry.creates
        }
        rows = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')"
        )
        if found := sorted(f"{s}.{t}" for s, t in rows if (s, t) in wanted):
            raise TargetError(
                "the target is not empty",
                detail=f"It has {_listed(found)}, which the source's schema would make.",
                hint="Name an empty database in sink.url. Or drop them there: a schema is only "
                "made where there is none; without --schema tables are used as they are.",
            )

    def _refuse_lacking(self, what: str, names: Iterable[str], hint: str) -> None:
        if missing := sorted(names):
            raise TargetError(f"the target lacks {what}: {', '.join(missing)}", hint=hint)


def _names(connection: SqlConnection, query: str) -> set[str]:
    return {name for (name,) in connection.execute(query.encode())}


def _drop_default(connection: SqlConnection, table: TableName, column: str) -> None:
    """A default is a value too. What has none, or is computed from other columns, is left alone."""
    found = connection.execute(
        "SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef d"
        " ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)"
        " WHERE a.attrelid IN (SELECT pg_catalog.to_regclass(%s)"
        " UNION SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(%s)))"
        " AND a.attname = %s AND a.attgenerated = ''",
        [quoted(*table), quoted(*table), column],
    ).fetchall()
    if found:
        names = sql.Identifier(*table), sql.Identifier(column)
        connection.execute(sql.SQL("ALTER TABLE {} ALTER {} DROP DEFAULT").format(*names))


def _policy_roles(found: Iterable[Entry]) -> set[str]:
    """Roles that policies are for; PUBLIC and the like are none."""
    roles: set[str] = set()
    for entry in found:
        if entry.type == "POLICY":
            with suppress(ParseError):  # the rehearsal tells what is wrong with it
                node: Any = parse_sql(entry.statement)[0].stmt
                roles |= {role.rolename for role in node.roles or () if role.rolename}
    return roles


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
