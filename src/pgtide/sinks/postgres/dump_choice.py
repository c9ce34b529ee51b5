"""Which entries of a dump are made at a target. What is left out is noted, but for pgtide's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from psycopg import sql

from pgtide.postgres.ddl_trigger import TRIGGERS
from pgtide.sinks.postgres.dump_text import Entry
from pgtide.sinks.postgres.source_parts import SourceParts

# They reach out to other servers, hold passwords, or act on commands that are replayed.
_NEVER = {
    "EVENT TRIGGER": "it would act on DDL that is replayed",
    "FOREIGN DATA WRAPPER": "it is about other servers",
    "SERVER": "it is about other servers",
    "USER MAPPING": "it is about other servers",
    "TRANSFORM": "transforms are not copied",
}
# Named by pg_dump with their table: `orders orders_pkey`.
_OF_TABLES = ("CONSTRAINT", "FK CONSTRAINT", "CHECK CONSTRAINT", "RULE", "POLICY", "TRIGGER")
_EXTENSION_SCHEMA = re.compile(r'WITH SCHEMA (?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>\S+))')


class Choice:
    """Chooses for one target."""

    def __init__(self, parts: SourceParts) -> None:
        self._parts = parts
        self._uncommented = {(schema, _comment_of(k, n)) for k, schema, n in parts.left_out}
        self.notes: list[str] = []

    def of(self, found: Iterable[Entry]) -> list[Entry]:
        """The entries that are made, of one section."""
        return [entry for entry in found if self._is_made(entry)]

    def refreshes(self, found: Sequence[Entry]) -> list[Entry]:
        """What fills materialized views that have rows at the source, in the order of the dump."""
        return [
            _refresh(entry)
            for entry in found
            if entry.type == "MATERIALIZED VIEW"
            and entry.creates
            and (entry.schema, entry.name) in self._parts.populated
        ]

    def _is_made(self, entry: Entry) -> bool:
        parts = self._parts
        if entry.type == "COMMENT":
            return not self._is_about_left_out(entry)
        if entry.type in _NEVER:
            if entry.creates and entry.name not in TRIGGERS:
                self.notes.append(f"{entry.described}: {_NEVER[entry.type]}")
            return False
        if entry.type == "CAST":
            if entry.name not in parts.casts:
                self.notes.append(f"{entry.name}, which the tables do not need")
            return entry.name in parts.casts
        if entry.type == "EXTENSION" and _schema_of_extension(entry) in parts.other_schemas:
            self.notes.append(f"{entry.described}, which the tables do not need")
            return False
        return (entry.type, entry.schema, entry.name) not in parts.left_out

    def _is_about_left_out(self, comment: Entry) -> bool:
        # An extension's own comment is its maker's, and only its owner may change it.
        if comment.name.startswith(tuple(f"{kind} " for kind in (*_NEVER, "EXTENSION"))):
            return True
        if comment.name.startswith("CAST "):
            return comment.name not in self._parts.casts
        return (comment.schema, comment.name) in self._uncommented


def _comment_of(kind: str, name: str) -> str:
    """How pg_dump names the comment on an object."""
    if kind not in _OF_TABLES:
        return f"{kind} {name}"
    table, _, own = name.partition(" ")
    return f"{kind.removeprefix('FK ').removeprefix('CHECK ')} {own} ON {table}"


def _schema_of_extension(entry: Entry) -> str:
    match = _EXTENSION_SCHEMA.search(entry.statement)
    if match is None:
        return ""
    return match["quoted"].replace('""', '"') if match["quoted"] else match["plain"]


def _refresh(entry: Entry) -> Entry:
    name = sql.Identifier(entry.schema, entry.name)
    statement = sql.SQL("REFRESH MATERIALIZED VIEW {}").format(name).as_string(None)
    return Entry("MATERIALIZED VIEW DATA", entry.schema, entry.name, statement)
