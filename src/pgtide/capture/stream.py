"""The slot as a stream of messages: how to ask for it, how far it goes, how to confirm it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, translate

SLOT_BUSY_RETRIES_S = 10.0


@dataclass(frozen=True, slots=True)
class Stream:
    """What to read: slot, publications, and whether replicated changes count."""

    slot: str
    publications: tuple[str, ...]
    origin: str  # "any" or "none"
    server_version: int

    def options(self) -> list[tuple[str, str]]:
        """The output plugin's options."""
        names = ",".join('"' + name.replace('"', '""') + '"' for name in self.publications)
        options = [("proto_version", "1"), ("publication_names", names), ("messages", "true")]
        if self.server_version >= 160_000:
            options.append(("origin", self.origin))
        return options


def advance(conn: SqlConnection, slot: str, lsn: Lsn) -> None:
    """Confirm a position by SQL; nothing happens if the slot is there already."""
    deadline = time.monotonic() + SLOT_BUSY_RETRIES_S
    while True:
        try:
            conn.execute(
                "SELECT pg_catalog.pg_replication_slot_advance(slot_name, %s) "
                "FROM pg_catalog.pg_replication_slots "
                "WHERE slot_name = %s AND confirmed_flush_lsn < %s",
                [str(lsn), slot, str(lsn)],
            )
            return
        except psycopg.errors.ObjectInUse as exc:
            # After a switch of gears: our own walsender may not have let go yet.
            if time.monotonic() > deadline:
                raise translate(exc) from exc
            time.sleep(0.02)
        except psycopg.Error as exc:
            raise translate(exc) from exc


def flush_lsn(conn: SqlConnection) -> Lsn:
    """How far the server's WAL is durable."""
    row = conn.execute(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
        " THEN pg_catalog.pg_last_wal_replay_lsn()"
        " ELSE pg_catalog.pg_current_wal_flush_lsn() END::text"
    ).fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def readable_lsn(conn: SqlConnection, stream: Stream) -> Lsn:
    """How far a copy of the slot may be read: durable here and, as with the slot itself, there.

    A slot that survives a failover does not yield what the standbys in
    ``synchronized_standby_slots`` have not yet received. Its copy does not wait for them.
    """
    durable = flush_lsn(conn)
    if stream.server_version < 170_000:
        return durable
    row = conn.execute(
        "WITH named AS (SELECT trim(name) AS name FROM unnest(string_to_array("
        "  current_setting('synchronized_standby_slots'), ',')) AS name) "
        "SELECT count(*), count(standby.restart_lsn), min(standby.restart_lsn)::text "
        "FROM pg_catalog.pg_replication_slots own "
        "JOIN named ON own.failover AND named.name <> '' "
        "LEFT JOIN pg_catalog.pg_replication_slots standby ON standby.slot_name = named.name "
        "WHERE own.slot_name = %s",
        [stream.slot],
    ).fetchone()
    assert row is not None
    named, known, received = row
    if not named:
        return durable
    return min(durable, Lsn.parse(received)) if known == named else Lsn(0)
