"""The two gears: the same slot read by the streaming protocol or by SQL in batches.

*Live* is START_REPLICATION, for latency. *Bulk* peeks at the slot with
``pg_logical_slot_peek_binary_changes`` in a COPY, which is far faster for a
backlog because the walsender flushes every single message. Both yield the same
messages; ``Receiver`` turns either into chunks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from pgtide.capture.receive import Receiver
from pgtide.errors import SlotBusy, SourceError
from pgtide.position import Lsn
from pgtide.postgres.connection import (
    SqlConnection,
    connect_replication,
    run,
    translate,
)

SLOT_BUSY_RETRIES_S = 10.0
BULK_MESSAGES = 1_000_000  # per peek; the server keeps them in a tuplestore
BULK_WORK_MEM = "64MB"  # of that tuplestore, before it becomes a temporary file
BULK_WAL_BYTES = 1 << 30  # per peek, so that a call over unpublished WAL ends
BULK_TIMEOUT_MS = 300_000


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


class LiveSession:
    """One START_REPLICATION and the receiver behind it."""

    def __init__(self, url: str, stream: Stream, start: Lsn, *, gather_s: float) -> None:
        self._conn = connect_replication(url, application_name="pgtide capture")
        try:
            run(self._conn, "SET synchronous_commit = off")
            self._start(stream, start)
        except BaseException:
            self._conn.close()
            raise
        self.receiver = Receiver(
            self._conn.pgconn, streaming=True, confirmed=start, gather_s=gather_s
        )

    def _start(self, stream: Stream, start: Lsn) -> None:
        options = ", ".join(
            f"{name} {sql.Literal(value).as_string(None)}" for name, value in stream.options()
        )
        command = (
            f"START_REPLICATION SLOT {sql.Identifier(stream.slot).as_string(None)}"
            f" LOGICAL {start} ({options})"
        )
        deadline = time.monotonic() + SLOT_BUSY_RETRIES_S
        while True:
            try:
                result = run(self._conn, command)
                break
            except SlotBusy:
                # Our own walsender of a moment ago may not have let go yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise SourceError("the server did not start replication")

    def close(self) -> None:
        """End the session; the slot is free as soon as the server notices."""
        self.receiver.stop()
        self._conn.close()


class BulkSession:
    """One peek at the slot, up to ``upto``."""

    def __init__(self, conn: SqlConnection, stream: Stream, upto: Lsn, messages: int) -> None:
        self._pgconn = conn.pgconn
        options = sql.SQL(", ").join(
            sql.Literal(text) for option in stream.options() for text in option
        )
        query = sql.SQL(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes("
            "{slot}, {upto}, {messages}, {options})) TO STDOUT (FORMAT binary)"
        ).format(
            slot=sql.Literal(stream.slot),
            upto=sql.Literal(str(upto)),
            messages=sql.Literal(messages),
            options=options,
        )
        self._pgconn.send_query(query.as_bytes(conn))
        self.receiver = Receiver(self._pgconn, streaming=False, confirmed=upto)

    def close(self) -> None:
        """Let the thread end; the SQL session goes on."""
        self.receiver.stop()


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
