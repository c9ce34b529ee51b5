"""A thread that owns one COPY session and turns it into chunks.

Receiving overlaps with decoding and flushing: the compiled loop holds no GIL,
and a few buffers go round between this thread and the one that decodes. Each
gear has its own kind of receiver.
"""

from __future__ import annotations

import os
import queue
import select
import threading
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
NOT_IN_PREREQUISITE_STATE = b"55000"
POLL_S = 0.5


@dataclass(slots=True)
class Received:
    """A chunk, and what the server said about its WAL by the end of it."""

    chunk: Chunk
    keepalive: Lsn = Lsn(0)
    finished: bool = False


@dataclass(slots=True)
class _Buffer:
    data: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: np.empty(CHUNK_MESSAGES, np.int64))
    ends: np.ndarray = field(default_factory=lambda: np.empty(CHUNK_MESSAGES, np.int64))


class Receiver:
    """Runs the thread; ``get`` and ``release`` are for the decoding side.

    A gear says how its COPY begins, what its end means, and what the server is told.
    """

    mode: int  # what the frames are, see libpq

    def __init__(self, pgconn: pq.abc.PGconn, *, naps: int, chunk_bytes: int | None = None) -> None:
        self._pgconn = pgconn
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self._naps = naps
        self._functions = libpq.Functions()
        # Not in psycopg's protocol class, but in every implementation of it.
        self._address: int = pgconn.pgconn_ptr  # type: ignore[attr-defined]
        self._state = np.zeros(libpq.STATE_SIZE, np.int64)
        self._cell = np.zeros(1, np.int64)
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(self._new_buffer())
        self._ready: queue.SimpleQueue[Received | BaseException] = queue.SimpleQueue()
        self._out: dict[int, _Buffer] = {}
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(pgconn.socket, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        pgconn.notice_handler = self._notice
        self._warning: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgtide-receive", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        """Wait until there is a COPY to read from."""

    def _copy_ended(self) -> bool:
        """Read what is behind the data; whether that was all."""
        raise NotImplementedError

    def _feedback(self, *, waiting: bool = False) -> None:
        """Tell the server what it should know; ``waiting``: we do not hear what it asks."""

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
            grown = len(buffer.data) != self._chunk_bytes
            self._free.put(self._new_buffer() if grown else buffer)

    def stop(self) -> None:
        """End the thread; the session is then of no further use."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._stopping:
                buffer = self._free_buffer()
                if buffer is None or self._fill(buffer):
                    break
            self._feedback()  # what was confirmed last
        except BaseException as exc:  # handed to the decoding side, which decides
            self._ready.put(exc)

    def _new_buffer(self) -> _Buffer:
        return _Buffer(np.empty(self._chunk_bytes, np.uint8))

    def _free_buffer(self) -> _Buffer | None:
        while not self._stopping:
            try:
                return self._free.get(timeout=POLL_S)
            except queue.Empty:
                self._feedback(waiting=True)
        return None

    def _fill(self, buffer: _Buffer) -> bool:
        """Fill one buffer and hand it over; True when the COPY is over."""
        state = self._state
        state[libpq.USED] = state[libpq.COUNT] = 0
        keepalive = int(state[libpq.KEEPALIVE])
        self._begin()
        while not self._stopping:
            before = state[libpq.COUNT]
            why = self._drain(buffer)
            if why != libpq.FINISHED:
                self._feedback()
            if self._warning is not None:
                raise self._warning
            if why == libpq.WOULD_BLOCK:
                nothing = state[libpq.COUNT] == 0 and state[libpq.KEEPALIVE] == keepalive
                if nothing or self.mode != libpq.STREAMED:  # a backlog comes in full buffers
                    self._wait(POLL_S)
                    continue
                if state[libpq.COUNT] > before and not self._ready.empty():
                    continue  # decoding is behind: larger chunks cost it less
            elif why == libpq.FULL and state[libpq.COUNT] == 0:
                # One message larger than the buffer: this buffer grows to hold it.
                buffer.data = np.empty(int(state[libpq.PENDING_SIZE]), np.uint8)
                continue
            over = why == libpq.FINISHED and self._copy_ended()
            self._hand_over(buffer, finished=over)
            return over
        return True

    def _drain(self, buffer: _Buffer) -> int:
        functions = self._functions
        why: int = libpq.drain(
            functions.get, functions.consume, functions.free, functions.sleep, self._address,
            self._cell.ctypes.data, self.mode, self._naps,
            buffer.data.ctypes.data, len(buffer.data), buffer.starts.ctypes.data,
            buffer.ends.ctypes.data, CHUNK_MESSAGES, self._state.ctypes.data,
        )  # fmt: skip
        if why == libpq.BROKEN:
            raise self._broken()
        if why == libpq.MALFORMED:
            raise ProtocolError(
                "malformed frame in the copy stream",
                detail="The server sent a frame that is neither data nor a keep-alive.",
            )
        return why

    def _hand_over(self, buffer: _Buffer, *, finished: bool) -> None:
        chunk = Chunk(buffer.data, buffer.starts, buffer.ends, int(self._state[libpq.COUNT]))
        self._out[id(chunk)] = buffer
        self._ready.put(Received(chunk, Lsn(int(self._state[libpq.KEEPALIVE])), finished))

    def _wait(self, seconds: float) -> None:
        events = self._poll.poll(seconds * 1000)
        if any(descriptor == self._wake for descriptor, _ in events):
            os.eventfd_read(self._wake)

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
        # PG18 only warns that it skips a publication, and loses rows. By the code: the text may be
        # in another language.
        if result.error_field(pq.DiagnosticField.SQLSTATE) == NOT_IN_PREREQUISITE_STATE:
            self._warning = PublicationMissing(
                "the publication is gone",
                detail="The server skips changes until it is there again.",
                hint="Run: pgtide init",
            )
