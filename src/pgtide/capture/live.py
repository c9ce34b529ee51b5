"""The live gear: START_REPLICATION, for latency.

The thread also sends all feedback, since libpq connections are not thread-safe,
and keeps doing so while it waits for a free buffer: a slow flush or a huge
transaction never makes the server drop us.
"""

from __future__ import annotations

import os
import select
import struct
import time

from psycopg import pq, sql

from pgtide.capture import libpq
from pgtide.capture.receive import POLL_S, Receiver
from pgtide.capture.stream import SLOT_BUSY_RETRIES_S, Stream
from pgtide.errors import SlotBusy, SourceError, SourceUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import connect_replication, run
from pgtide.wal.messages import EPOCH_US

STATUS_INTERVAL_S = 10.0


class StreamReceiver(Receiver):
    """Reads XLogData and keep-alives, answers with the confirmed position."""

    mode = libpq.STREAMED

    def __init__(self, pgconn: pq.abc.PGconn, *, confirmed: Lsn, gather_s: float) -> None:
        self._confirmed = self._sent = confirmed
        self._sent_at = 0.0
        # The longest that messages wait for others to come.
        super().__init__(pgconn, naps=int(gather_s * 1_000_000 / libpq.NAP_US))

    def confirm(self, lsn: Lsn) -> None:
        """Tell the server that everything up to here is durable."""
        self._confirmed = lsn
        os.eventfd_write(self._wake, 1)

    def _feedback(self, *, waiting: bool = False) -> None:
        """Send a standby status when the position moved, when asked, and every 10 s.

        While no buffer is free we do not hear when we are asked: then each time.
        """
        now = time.monotonic()
        asked = waiting or self._state[libpq.REPLY] == 1
        if not asked and self._confirmed == self._sent and now - self._sent_at < STATUS_INTERVAL_S:
            return
        lsn = int(self._confirmed)
        clock = time.time_ns() // 1000 - EPOCH_US
        status = b"r" + struct.pack(">QQQqB", lsn, lsn, lsn, clock, 0)
        self._pgconn.put_copy_data(status)
        while self._pgconn.flush() == 1 and not self._stopping:
            select.select([], [self._pgconn.socket], [], POLL_S)
        self._state[libpq.REPLY] = 0
        self._sent, self._sent_at = Lsn(lsn), now

    def _copy_ended(self) -> bool:
        self._read_results(self._pgconn.get_result())
        raise SourceUnavailable("the server ended the replication stream")


class LiveSession:
    """One START_REPLICATION and the receiver behind it."""

    def __init__(self, url: str, stream: Stream, start: Lsn, *, gather_s: float) -> None:
        self._conn = connect_replication(url, application_name="pgtide capture")
        try:
            run(self._conn, "SET synchronous_commit = off")
            run(self._conn, "SET client_min_messages = warning")  # see Receiver._notice
            self._start(stream, start)
        except BaseException:
            self._conn.close()
            raise
        self.receiver = StreamReceiver(self._conn.pgconn, confirmed=start, gather_s=gather_s)

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
