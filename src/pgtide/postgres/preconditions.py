"""What has to be true before ``init`` changes anything: each is an error of its own."""

from __future__ import annotations

from pgtide.config import TablePatterns
from pgtide.errors import ConfigError, LogGap, OtherSource, SourceError
from pgtide.log.source import LogSource
from pgtide.postgres.catalog import ServerFacts
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.identity import read_identities
from pgtide.postgres.names import is_literal, nearest
from pgtide.postgres.slot import SlotState

OLDEST_VERSION = 140_000


def check_same_server(admin: ServerFacts, own: ServerFacts) -> None:
    """Both connection strings of the configuration have to mean one database."""
    if (admin.system_identifier, admin.database) != (own.system_identifier, own.database):
        raise ConfigError(
            "source.url and source.admin_url name different databases",
            detail=f"They lead to {own.database} and {admin.database}.",
        )


def check_log(server: ServerFacts, name: str, slot: SlotState, log: LogSource | None) -> None:
    """A log that exists has to belong to this database and to a slot that is still there."""
    if log is None:
        return
    if (log.system_identifier, log.database) != (server.system_identifier, server.database):
        raise OtherSource(
            "the log belongs to another database",
            detail=f"It was written from {log.database} of system {log.system_identifier};"
            f" this is {server.database} of system {server.system_identifier}.",
            hint="Set log.path to a new place.",
        )
    if log.slot != name:
        raise OtherSource(
            f"the log belongs to slot {log.slot}",
            detail=f"The configuration says slot {name}.",
            hint=f"Set source.slot to {log.slot}, or log.path to a new place.",
        )
    if not slot.exists:
        raise LogGap(
            f"the log goes on where slot {name} stood, and that slot is gone",
            detail="Changes since then were not kept by the server: a new slot would leave a gap.",
            hint="Set log.path to a new place, then run: pgtide init",
        )


def check_patterns(conn: SqlConnection, patterns: TablePatterns) -> None:
    """A pattern without wildcard that names no table is a misspelling."""
    names = [(table.schema, table.table) for table in read_identities(conn)]
    unknown = [text for text in patterns.unmatched(names) if is_literal(text)]
    if unknown:
        raise ConfigError(
            f"unknown table pattern {unknown[0]!r}",
            detail="It has no wildcard and there is no such table.",
            hint=nearest(unknown[0], names),
        )


def check_server(server: ServerFacts) -> None:
    """A primary of a supported release that logs enough."""
    if server.version < OLDEST_VERSION:
        raise SourceError(f"Postgres {server.major} is too old", detail="14 is the oldest.")
    if server.in_recovery:
        raise SourceError(
            "the server is a standby",
            hint="Set source.url to the primary.",
        )
    if server.wal_level != "logical":
        raise SourceError(
            f"wal_level is {server.wal_level}, logical is needed",
            hint="Run: ALTER SYSTEM SET wal_level = logical; then restart the server.",
        )
