"""Rows of a query, through ``COPY … TO STDOUT`` in text format.

    COPY ──▶ receive (thread, compiled) ──▶ lines ──▶ parse (compiled) ──▶ Arrow or pages

The texts are those that replication sends for the same values, as long as the
session's settings are those that ``connect`` pins. Receiving goes on while the
caller works on a batch. Nothing is done per row in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import pq, sql

from pgtide.capture import libpq
from pgtide.capture.receive import POLL_S, Receiver
from pgtide.errors import SourceUnavailable
from pgtide.postgres.connection import SqlConnection
from pgtide.snapshot.text_page import TextPage, text_page
from pgtide.wal.copy_text import parse_lines

Batch = TypeVar("Batch")

BATCH_BYTES = 4 << 20
PAGE_BYTES = 1 << 20
# Asking the socket from Python for each of its fillings would cost twice what receiving does.
NAPS = 1_000_000


class LineReceiver(Receiver):
    """Runs one COPY in text format to its end."""

    mode = libpq.LINES

    def __init__(self, pgconn: pq.abc.PGconn, command: bytes, batch_bytes: int) -> None:
        self._begun = False
        self._notices = pgconn.notice_handler
        pgconn.send_query(command)
        super().__init__(pgconn, naps=NAPS, chunk_bytes=batch_bytes)

    def stop(self) -> None:
        """End the thread; the session can be used again if the COPY came to its end."""
        super().stop()
        self._pgconn.notice_handler = self._notices

    def _begin(self) -> None:
        while not self._begun:
            if self._stopping:
                return
            if self._pgconn.is_busy():
                self._wait(POLL_S)
                self._pgconn.consume_input()
                continue
            self._begun = True
            result = self._pgconn.get_result()
            if result is None:
                raise SourceUnavailable("connection lost")
            if result.status != pq.ExecStatus.COPY_OUT:
                self._read_results(result)

    def _copy_ended(self) -> bool:
        self._read_results(self._pgconn.get_result())
        return True

    def _notice(self, result: pq.abc.PGresult) -> None:
        if self._notices is not None:
            self._notices(result)


def copy_rows(
    conn: SqlConnection, query: sql.Composable, width: int, *, batch_bytes: int = BATCH_BYTES
) -> Generator[pa.ListArray[Any], None, None]:
    """The rows of a query of ``width`` columns, each a list of texts, in batches.

    A batch has at most ``batch_bytes`` of text, or one row.
    """
    yield from _copied(conn, query, width, batch_bytes, parse_lines)


def copy_pages(
    conn: SqlConnection, query: sql.Composable, width: int
) -> Generator[TextPage, None, None]:
    """The same as pages for a file of the log."""
    yield from _copied(conn, query, width, PAGE_BYTES, text_page)


def _copied(
    conn: SqlConnection,
    query: sql.Composable,
    width: int,
    batch_bytes: int,
    parse: Callable[[NDArray[np.uint8], int, int], Batch],
) -> Generator[Batch, None, None]:
    """Run a COPY in the transaction that is open on the connection, if one is.

    Whoever does not read to the end loses the connection: it is closed, because the server
    would go on sending.
    """
    command = sql.SQL("COPY ({}) TO STDOUT").format(query).as_bytes(conn)
    receiver = LineReceiver(conn.pgconn, command, batch_bytes)
    finished = False
    try:
        while not finished:
            received = receiver.get(POLL_S)
            if received is None:
                continue
            chunk, finished = received.chunk, received.finished
            batch = None
            if chunk.count:
                text = chunk.data[: int(chunk.ends[chunk.count - 1])]
                batch = parse(text, chunk.count, width)
            receiver.release(received)
            if batch is not None:
                yield batch
    finally:
        receiver.stop()
        if conn.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            conn.close()
