"""A thread that owns one COPY session and turns it into chunks.

Receiving overlaps with decoding and flushing: the compiled loop holds no GIL,
and a few buffers go round between this thread and the one that decodes. libpq
connections are not thread-safe, so the thread also sends all feedback, and
keeps doing so while it waits for a free buffer: a slow flush or a huge
transaction never makes the server drop us.
"""

from __future__ import annotations

import os
import queue
import select
import struct
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from psycopg import pq

from pgtide.capture import libpq
from pgtide.errors import ProtocolError, PublicationMissing, SourceUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import result_error
from pgtide.wal.decoder import Chunk

CHUNK_BYTES = 4 << 20
CHUNK_MESSAGES = 65_536
BUFFERS = 4
GATHER_S = 0.0005  # let a few more messages arrive before looking again
STATUS_INTERVAL_S = 10.0
_POLL_S = 0.5
_EPOCH_US = 946_684_800_000_000  # 2000-01-01 in Unix microseconds


@dataclass(slots=True)
class Received:
    """A chunk, and what the server said about its WAL by the end of it."""

    chunk: Chunk
    keepalive: Lsn = Lsn(0)
    finished: bool = False


@dataclass(slots=True)
class _Buffer:
    data: np.ndarray = field(default_factory=lambda: np.empty(CHUNK_BYTES, np.uint8))
    starts: np.ndarray = field(default_factory=lambda: np.empty(CHUNK_MESSAGES, np.int64))
    ends: np.ndarray = field(default_factory=lambda: np.empty(CHUNK_MESSAGES, np.int64))


class Receiver:
    """Runs the thread; ``get`` and ``release`` are for the decoding side."""

    def __init__(
        self, pgconn: pq.abc.PGconn, *, streaming: bool, confirmed: Lsn, gather_s: float = 0.0
    ) -> None:
        self._pgconn = pgconn
        self._streaming = streaming
        self._gather_s = gather_s  # the longest that messages wait for others to come
        self._functions = libpq.Functions()
        # Not in psycopg's protocol class, but in every implementation of it.
        self._address: int = pgconn.pgconn_ptr  # type: ignore[attr-defined]
        self._state = np.zeros(libpq.STATE_SIZE, np.int64)
        self._state[libpq.HEADER] = 0 if streaming else 1
        self._cell = np.zeros(1, np.int64)
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(_Buffer())
        self._ready: queue.SimpleQueue[Received | BaseException] = queue.SimpleQueue()
        self._out: dict[int, _Buffer] = {}
        self._confirmed = self._sent = confirmed
        self._sent_at = 0.0
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(pgconn.socket, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        pgconn.notice_handler = self._notice
        self._warning: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgtide-receive", daemon=True)
        self._thread.start()

    def get(self, timeout: float) -> Received | None:
        """The next chunk, None if there is none in time; raises what the thread met."""
        try:
            item = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def release(self, received: Received) -> None:
        """Give a chunk's buffer back."""
        buffer = self._out.pop(id(received.chunk), None)
        if buffer is not None:
            # One that grew for a huge message would keep its memory for ever.
            self._free.put(buffer if len(buffer.data) == CHUNK_BYTES else _Buffer())

    def confirm(self, lsn: Lsn) -> None:
        """Tell the server that everything up to here is durable."""
        self._confirmed = lsn
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread; the session is then of no further use."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            if not self._streaming:
                self._await_copy()
            while not self._stopping:
                buffer = self._free_buffer()
                if buffer is None or self._fill(buffer):
                    break
            self._feedback()  # what was confirmed last
        except BaseException as exc:  # handed to the decoding side, which decides
            self._ready.put(exc)

    def _await_copy(self) -> None:
        """Wait until the query that was sent begins to answer."""
        while self._pgconn.is_busy():
            if self._stopping:
                return
            self._wait(_POLL_S)
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        if result is None:
            raise SourceUnavailable("connection lost")
        if result.status != pq.ExecStatus.COPY_OUT:
            self._read_results(result)

    def _free_buffer(self) -> _Buffer | None:
        while not self._stopping:
            try:
                return self._free.get(timeout=_POLL_S)
            except queue.Empty:
                self._feedback()
        return None

    def _fill(self, buffer: _Buffer) -> bool:
        """Fill one buffer and hand it over; True when the COPY is over."""
        state = self._state
        state[libpq.USED] = state[libpq.COUNT] = 0
        keepalive = int(state[libpq.KEEPALIVE])
        seen = 0
        deadline = 0.0
        while not self._stopping:
            why = self._drain(buffer)
            self._feedback()
            if self._warning is not None:
                raise self._warning
            if why == libpq.WOULD_BLOCK:
                nothing = state[libpq.COUNT] == 0 and state[libpq.KEEPALIVE] == keepalive
                if nothing or not self._streaming:  # a backlog comes in full buffers
                    self._wait(_POLL_S)
                    continue
                if state[libpq.COUNT] > seen:
                    # The walsender flushes every message: waking up for each costs more
                    # than all the rest. Sleep as long as more arrives meanwhile.
                    now = time.monotonic()
                    deadline = deadline or now + self._gather_s
                    if now < deadline:
                        seen = int(state[libpq.COUNT])
                        time.sleep(GATHER_S)
                        continue
            elif why == libpq.FULL and state[libpq.COUNT] == 0:
                # One message larger than the buffer: this buffer grows to hold it.
                buffer.data = np.empty(int(state[libpq.PENDING_SIZE]), np.uint8)
                continue
            self._hand_over(buffer, finished=why == libpq.FINISHED)
            return why == libpq.FINISHED
        return True

    def _drain(self, buffer: _Buffer) -> int:
        functions = self._functions
        why: int = libpq.drain(
            functions.get, functions.consume, functions.free, self._address,
            self._cell, self._streaming, buffer.data, buffer.starts, buffer.ends, self._state,
        )  # fmt: skip
        if why == libpq.BROKEN:
            raise self._broken()
        if why == libpq.MALFORMED:
            raise ProtocolError(
                "malformed frame in the copy stream",
                detail="The server sent a frame that is neither data nor a keep-alive.",
            )
        if why == libpq.FINISHED:
            self._end_of_copy()
        return why

    def _hand_over(self, buffer: _Buffer, *, finished: bool) -> None:
        chunk = Chunk(buffer.data, buffer.starts, buffer.ends, int(self._state[libpq.COUNT]))
        self._out[id(chunk)] = buffer
        self._ready.put(Received(chunk, Lsn(int(self._state[libpq.KEEPALIVE])), finished))

    def _wait(self, seconds: float) -> None:
        events = self._poll.poll(seconds * 1000)
        if any(descriptor == self._wake for descriptor, _ in events):
            os.eventfd_read(self._wake)

    def _feedback(self) -> None:
        """Send a standby status when the position moved, when asked, and every 10 s."""
        if not self._streaming:
            return
        now = time.monotonic()
        asked = self._state[libpq.REPLY] == 1
        if not asked and self._confirmed == self._sent and now - self._sent_at < STATUS_INTERVAL_S:
            return
        lsn = int(self._confirmed)
        clock = time.time_ns() // 1000 - _EPOCH_US
        status = b"r" + struct.pack(">QQQqB", lsn, lsn, lsn, clock, 0)
        self._pgconn.put_copy_data(status)
        while self._pgconn.flush() == 1 and not self._stopping:
            select.select([], [self._pgconn.socket], [], _POLL_S)
        self._state[libpq.REPLY] = 0
        self._sent, self._sent_at = Lsn(lsn), now

    def _end_of_copy(self) -> None:
        """Read the result behind the data; errors of the server surface here."""
        self._read_results(self._pgconn.get_result())
        if self._streaming:
            raise SourceUnavailable("the server ended the replication stream")

    def _read_results(self, result: pq.abc.PGresult | None) -> None:
        """Read to the end, so that the session can be used again; then raise what failed."""
        error: BaseException | None = None
        while result is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR and error is None:
                error = result_error(result, self._pgconn)
            result = self._pgconn.get_result()
        if error is not None:
            raise error

    def _broken(self) -> BaseException:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return result_error(result, self._pgconn)
        return SourceUnavailable(self._pgconn.get_error_message().strip() or "connection lost")

    def _notice(self, result: pq.abc.PGresult) -> None:
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        if "skipped loading publication" in message:  # PG18 only warns, and loses rows
            self._warning = PublicationMissing(
                "the publication is gone",
                detail="The server skips changes until it is there again.",
                hint="Run: pgtide init",
            )
