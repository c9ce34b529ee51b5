"""The refresh of one relation: chunk after chunk, several on their way, until all are in the log.

    low watermark ──▶ seed ──▶ [ boundary ▸ read ▸ high watermark ▸ place ▸ commit ] … ──▶ done

Each chunk is brought by one thread: it reads with one of a few connections, sends the watermark,
and waits until the rows are in the log, or turn out to be of another time and are read again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pgtide.capture.changed_keys import ChangedKeys, split_key
from pgtide.capture.faults import fault
from pgtide.capture.reading import Beginning, Reading
from pgtide.capture.seeding import Seeding
from pgtide.capture.tables import HEARTBEAT_PREFIX, WATERMARK_PREFIX
from pgtide.capture.windows import Windows
from pgtide.errors import TransientError
from pgtide.log.refreshes import Refresh
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.visibility import Visibility
from pgtide.snapshot.key_chunks import Chunk, ChunkTooLarge, KeyedTable
from pgtide.snapshot.key_plan import CHUNK_BYTES, KeyPlan

CHUNKS = 8  # on their way: some wait for a commit of the log while others are read
MOST_BYTES = 8 * CHUNK_BYTES  # a chunk that has more is read in parts
LOST_S = 10.0  # after which a watermark that did not come back is sent again
POLL_S = 0.5
RETRY_S = 0.5


class Pace(Protocol):
    """How fast a refresh may go."""

    def wait(self, rows: int) -> None:
        """Wait until that many rows may be read; raises when the refresh is not to go on."""

    def check(self) -> None:
        """Raise if the refresh is not to go on."""


def send_watermark(conn: SqlConnection, token: str) -> Lsn:
    """Write a watermark into the WAL, flushed, so that it comes back soon; where it ends."""
    emit = "SELECT pg_catalog.pg_logical_emit_message(false, %s, %s"
    if conn.info.server_version >= 170_000:
        row = conn.execute(f"{emit}, true)::text".encode(), [WATERMARK_PREFIX, token]).fetchone()
    else:
        # A message alone is flushed when the server pleases; a commit is at once, and it with it.
        row = conn.execute(
            f"{emit})::text, pg_catalog.pg_logical_emit_message(true, %s, '')".encode(),
            [WATERMARK_PREFIX, token, HEARTBEAT_PREFIX],
        ).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return Lsn.parse(row[0])


class TableRefresh:
    """One relation of one request."""

    def __init__(
        self,
        request: Refresh,
        tables: Sequence[KeyedTable],
        plan: KeyPlan,
        windows: Windows,
        seeding: Seeding,
        pace: Pace,
        on_done: Callable[[Reading], None],
    ) -> None:
        """``tables``: the relation, once for each connection that may read at a time."""
        self._request = request
        self._tables: queue.SimpleQueue[KeyedTable] = queue.SimpleQueue()
        for table in tables:
            self._tables.put(table)
        self._oid = tables[0].oid
        self._plan = plan
        self._windows = windows
        self._seeding = seeding
        self._pace = pace
        self._on_done = on_done
        self._lock = threading.Condition()
        self._newest = Visibility(0, 0)
        # Of each chunk on its way: a snapshot that was taken before its own.
        self._floors: dict[int, Visibility] = {}
        self._error: BaseException | None = None
        self._tracking = ChangedKeys()
        self._beginning = threading.Lock()

    def begin(self, since: Lsn | None) -> Lsn:
        """Track the table's changes, those of the past included that a reader may not see.

        Returns the position from which on every row will have been read or changed; ``since``
        is where the refresh began, if it did before.
        """
        with self._table() as table:
            beginning = Beginning(self._oid)
            fault("refresh_before_low")
            token = self._windows.expect(beginning)
            sent = send_watermark(table.conn, token)
            self._await(lambda: beginning.lsn is not None, table, token, sent)
            low = beginning.lsn
            assert low is not None, "it was waited for"
            # What was delivered before must be in the log to be found there.
            self._await(lambda: self._windows.position >= low, table, token, sent)
            fault("refresh_after_low")
            visibility = table.visibility()
            oldest = self._seeding.seed(self._oid, low, since, visibility)
        with self._lock:
            # Only from here on may anybody read: a snapshot from before may see less.
            self._newest, self._tracking = visibility, beginning.tracking
        return oldest

    def _tracked(self) -> ChangedKeys:
        """What is remembered of the table; begun anew if it became too much."""
        with self._beginning:
            if not self._windows.tracks(self._oid, self._tracking):
                self.begin(None)
            return self._tracking

    def run(self) -> None:
        """Read everything; returns when all of it is in the log."""
        threads = [
            threading.Thread(target=self._work, name=f"pgtide-refresh-{number}", daemon=True)
            for number in range(CHUNKS)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._windows.stop_tracking(self._oid)
        if self._error is not None:
            raise self._error

    # -- one of the threads -------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (chunk := self._next()) is not None:
                try:
                    self._bring(chunk)
                finally:
                    with self._lock:
                        del self._floors[threading.get_ident()]
                        self._lock.notify_all()
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
                self._lock.notify_all()

    def _next(self) -> Chunk | None:
        """The next chunk; None when nothing is left and nothing can come of what is under way."""
        while self._error is None:
            self._pace.check()
            with self._lock:
                for text in self._windows.take_moved(self._oid):
                    self._plan.once_more(split_key(text, self._plan.key_width))
                chunk = self._plan.next_chunk()
                if chunk is not None:
                    self._floors[threading.get_ident()] = self._newest
                elif not self._floors:
                    return None
                else:
                    self._lock.wait(POLL_S)
            if chunk is not None:
                self._pace.wait(self._plan.expected_rows(chunk))
                return chunk
        return None

    def _bring(self, chunk: Chunk) -> None:
        """Read a chunk and see it into the log."""
        try:
            reading = self._read(chunk)
        except ChunkTooLarge:
            self._plan.split(chunk)
        except TransientError:
            self._pace.check()
            time.sleep(RETRY_S)
            self._plan.again(chunk)
        else:
            if reading.outcome == "again":
                self._plan.again(chunk)
            else:
                self._done(reading)

    def _read(self, chunk: Chunk) -> Reading:
        tracking = self._tracked()
        with self._table() as table:
            fault("refresh_before_read")
            most = 1 << 62 if self._plan.is_single(chunk) else MOST_BYTES
            rows = table.read(chunk, most)
            reading = Reading(self._request, self._oid, chunk, tracking, rows)
            fault("refresh_after_read")
            token = self._windows.expect(reading)
            try:
                sent = send_watermark(table.conn, token)
                fault("refresh_after_high")
            except BaseException:
                self._windows.dismiss(token)
                raise
        try:
            self._await(lambda: self._is_settled(reading), None, token, sent)
        finally:
            self._windows.dismiss(token)
        return reading

    def _is_settled(self, reading: Reading) -> bool:
        released = reading.outcome == "released" and self._windows.position >= reading.lsn
        return released or reading.outcome == "again"

    def _done(self, reading: Reading) -> None:
        for key in reading.incomplete:
            self._plan.once_more(key)
        self._plan.done(reading.chunk, len(reading.read.rows), reading.read.rows.nbytes)
        with self._lock:
            self._newest = max(self._newest, reading.read.visibility, key=Visibility.age)
            floor = min(self._floors.values(), key=Visibility.age)
            self._windows.forget_seen(reading.tracking, floor)
            self._on_done(reading)

    # -- waiting ----------------------------------------------------------------------------

    def _await(
        self, done: Callable[[], bool], table: KeyedTable | None, token: str, sent: Lsn
    ) -> None:
        """Wait for something that a watermark brings; one that got lost is sent again."""
        deadline = time.monotonic() + LOST_S
        while not self._windows.wait(done, POLL_S):
            self._pace.check()
            overdue = time.monotonic() > deadline and self._windows.position > sent
            if overdue and self._windows.is_expected(token):
                deadline = time.monotonic() + LOST_S
                if table is not None:
                    sent = send_watermark(table.conn, token)
                else:
                    with self._table() as another:
                        sent = send_watermark(another.conn, token)

    @contextmanager
    def _table(self) -> Iterator[KeyedTable]:
        table = self._tables.get()
        try:
            yield table
        finally:
            self._tables.put(table)
