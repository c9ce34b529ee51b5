"""The slot as a stream of messages: how to ask for it, how far it goes, how to confirm it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from pgtide.errors import SlotAdvanced, SlotInvalidated, SlotMissing, SourceError
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, translate
from pgtide.postgres.slot import PLUGIN, SlotState, read_slot

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


def check_slot(conn: SqlConnection, slot: str, position: Lsn) -> SlotState:
    """The slot, which can go on where the log ends.

    To be called when we hold the slot or a copy of it: before, others may move it.
    """
    state = read_slot(conn, slot)
    if not state.exists:
        raise SlotMissing(
            f"replication slot {slot} does not exist",
            detail=f"The log ends at {position}; changes since then cannot be read any more.",
            hint="Start over: pgtide destroy --yes, a new log.path, pgtide init",
        )
    if state.plugin != PLUGIN:
        raise SourceError(
            f"replication slot {slot} is not ours",
            detail=f"It uses plugin {state.plugin}.",
            hint="Choose another name in source.slot.",
        )
    if state.invalid:
        raise SlotInvalidated(
            f"replication slot {slot} was invalidated",
            detail="The server removed WAL that it needed"
            f" ({state.invalidation_reason or 'max_slot_wal_keep_size'}).",
            hint="Start over: pgtide destroy --yes, a new log.path, pgtide init",
        )
    confirmed = state.confirmed_flush_lsn
    if confirmed is not None and confirmed > position:
        raise SlotAdvanced(
            f"replication slot {slot} was moved past the log",
            detail=f"The slot is at {confirmed}, the log at {position}: "
            "what lies between was never logged.",
            hint="Start over: pgtide destroy --yes, a new log.path, pgtide init",
        )
    return state


def advance(conn: SqlConnection, slot: str, lsn: Lsn) -> None:
    """Confirm a position by SQL; nothing happens if the slot is there already."""
    deadline = time.monotonic() + SLOT_BUSY_RETRIES_S
    while True:
        if check_slot(conn, slot, lsn).confirmed_flush_lsn == lsn:
            return
        try:
            conn.execute("SELECT pg_catalog.pg_replication_slot_advance(%s, %s)", [slot, str(lsn)])
            return
        except psycopg.errors.ObjectInUse as exc:
            # After a switch of gears: our own walsender may not have let go yet.
            if time.monotonic() > deadline:
                raise translate(exc) from exc
            time.sleep(0.02)
        except psycopg.Error as exc:
            check_slot(conn, slot, lsn)  # says best what happened to it meanwhile
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
