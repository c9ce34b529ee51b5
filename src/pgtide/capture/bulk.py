"""The bulk gear: a backlog read by SQL, a batch at a time.

The walsender flushes every single message, and that is its limit. The same
messages through ``pg_logical_slot_get_binary_changes`` in a COPY come in full
packets, several times as fast on TCP. It is read from a temporary copy of the
slot, which moves on with each batch, so that the server collects the next one
while this one is made durable; the slot itself is confirmed behind the log.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg
from psycopg import pq, sql

from pgtide.capture import libpq
from pgtide.capture.receive import POLL_S, Receiver
from pgtide.capture.stream import Stream, check_slot
from pgtide.errors import SourceUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, translate
from pgtide.postgres.slot import drop_slot

# Per batch: the server keeps them in a tuplestore. 960 000 messages take it 1.74 s as one batch,
# which outgrows the memory below, 1.25 s as two, 1.17 s as four, 1.5 s as eight.
BULK_MESSAGES = 250_000
BULK_WORK_MEM = "64MB"  # of that tuplestore, before it becomes a temporary file
BULK_TIMEOUT_MS = 300_000


class BatchReceiver(Receiver):
    """Sends the same query until it yields less than a whole batch."""

    mode = libpq.COPIED

    def __init__(self, pgconn: pq.abc.PGconn, query: bytes) -> None:
        self._query = query
        pgconn.send_query(query)
        self._collecting = True
        super().__init__(pgconn, naps=1000)

    def _begin(self) -> None:
        """Wait for the batch that was asked for."""
        if not self._collecting:
            return
        while self._pgconn.is_busy():
            if self._stopping:
                return
            self._wait(POLL_S)
            self._pgconn.consume_input()
        self._collecting = False
        self._state[libpq.HEADER] = 1
        self._state[libpq.TOTAL] = 0
        result = self._pgconn.get_result()
        if result is None:
            raise SourceUnavailable("connection lost")
        if result.status != pq.ExecStatus.COPY_OUT:
            self._read_results(result)

    def _copy_ended(self) -> bool:
        self._read_results(self._pgconn.get_result())
        if self._state[libpq.TOTAL] < BULK_MESSAGES:
            return True
        self._pgconn.send_query(self._query)
        self._collecting = True
        return False


class BulkSession:
    """Makes the copy, and reads it up to where it is asked to."""

    def __init__(self, conn: SqlConnection, stream: Stream, position: Lsn) -> None:
        self._conn = conn
        self._stream = stream
        self._copy = f"pgtide_bulk_{conn.info.backend_pid}"
        conn.execute(f"SET statement_timeout = {BULK_TIMEOUT_MS}".encode())
        # The server collects a batch before it sends the first message: in memory, if it may.
        conn.execute(f"SET work_mem = '{BULK_WORK_MEM}'".encode())
        conn.execute("SET client_min_messages = warning")  # see Receiver._notice
        # A batch goes on for a while in the server after we are gone, and with it our lock.
        with suppress(psycopg.errors.InvalidParameterValue):  # not on every system
            conn.execute("SET client_connection_check_interval = '1s'")
        try:
            conn.execute(
                "SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, true)",
                [stream.slot, self._copy],
            )
        except psycopg.Error as exc:
            raise translate(exc) from exc
        check_slot(conn, self._copy, position)
        self._receiver: Receiver | None = None

    def ask(self, upto: Lsn) -> Receiver:
        """Begin to read, batch after batch, all transactions that end before ``upto``."""
        options = sql.SQL(", ").join(
            sql.Literal(text) for option in self._stream.options() for text in option
        )
        query = sql.SQL(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes("
            "{slot}, {upto}, {messages}, {options})) TO STDOUT (FORMAT binary)"
        ).format(
            slot=sql.Literal(self._copy),
            upto=sql.Literal(str(upto)),
            messages=sql.Literal(BULK_MESSAGES),
            options=options,
        )
        self._stop_receiver()
        self._receiver = BatchReceiver(self._conn.pgconn, query.as_bytes(self._conn))
        return self._receiver

    def _stop_receiver(self) -> None:
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver = None

    def close(self) -> None:
        """Drop the copy, unless a batch is under way: it then ends with the connection."""
        self._stop_receiver()
        if self._conn.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self._conn.execute("SET statement_timeout = 0")
            drop_slot(self._conn, self._copy)  # which an error of the server's has done already
