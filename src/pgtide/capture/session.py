"""One capture session: from opening the log and the source to the first failure or stop.

The session decides between the gears and flushes. All of its state is thrown
away with it; V in the log is what the next one starts from.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol, Self

import psycopg

from pgtide.capture.buffer import RowBuffer
from pgtide.capture.ddl import DdlCommand
from pgtide.capture.faults import fault
from pgtide.capture.gears import (
    BULK_MESSAGES,
    BULK_TIMEOUT_MS,
    BULK_WAL_BYTES,
    BULK_WORK_MEM,
    BulkSession,
    LiveSession,
    advance,
    flush_lsn,
)
from pgtide.capture.progress import Progress
from pgtide.capture.receive import Received
from pgtide.capture.startup import check_publications, check_source
from pgtide.capture.tables import HEARTBEAT_PREFIX, TableCatalog
from pgtide.capture.upkeep import Upkeep
from pgtide.config import Config, TablePatterns
from pgtide.errors import SourceExhausted
from pgtide.log.shapes import ShapeStore
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.slot import read_slot
from pgtide.wal.decoder import Decoder

logger = logging.getLogger(__name__)

BULK_ENTER_BYTES = 32 << 20  # WAL behind the server at which the bulk gear pays
BULK_LEAVE_BYTES = 4 << 20
BULK_REREAD_BYTES = 512 << 20  # every peek reads again from the slot's restart point
LAG_INTERVAL_S = 1.0  # how often a live session asks the server where it is
IDLE_COMMIT_INTERVAL_S = 10.0  # commits that carry only a position, at most this often
HEARTBEAT_INTERVAL_S = 30.0
BUSY_FLUSH_SHARE = 0.5  # flushes come less often when they would take more of the time


class Tick(Protocol):
    """Called a few times a second."""

    def __call__(self, *, force: bool = False) -> None: ...


class CaptureSession:
    """Opens everything on entering; closes it on leaving."""

    def __init__(
        self, config: Config, progress: Progress, stop: threading.Event, gear: str | None
    ) -> None:
        self._config = config
        self._progress = progress
        self._stop = stop
        self._forced_gear = gear
        self._flush_seconds = 0.0
        self._idle_commit_at = time.monotonic()
        self._publication_touched = False
        self._bulk_again = Lsn(0)  # a peek failed: live until V is past this

    def __enter__(self) -> Self:
        config = self._config
        self._writer = LogWriter(config.log.path, config.log.storage, config.source.slot)
        # Two SQL sessions: one holds the lock and peeks, the other can be asked at any time.
        self._conn = connect(config.source.url.reveal(), application_name="pgtide capture")
        self._side = self._conn
        try:
            self._side = connect(config.source.url.reveal(), application_name="pgtide capture")
            self._start = check_source(config, self._conn, self._writer)
            self._open_catalog()
            self._upkeep = Upkeep(config, self._writer)
        except psycopg.Error as exc:
            self._close()
            raise translate(exc) from exc
        except BaseException:
            self._close()
            raise
        self._progress.position = self._writer.position
        return self

    def __exit__(self, *_: object) -> None:
        self._upkeep.close()
        self._close()

    def _close(self) -> None:
        self._conn.close()
        self._side.close()

    def run(self, *, until_current: bool, tick: Tick) -> None:
        """Stream until stopped, or until everything from before the call is in the log."""
        self._tick = tick
        try:
            self._until = self._current_position() if until_current else None
            while not self._finished():
                if self._gear() == "bulk":
                    self._progress.gear = "bulk"
                    self._run_bulk()
                else:
                    self._progress.gear = "live"
                    self._run_live()
                fault("switching_gear")
                # A transaction cut off by the switch comes again from its beginning, and
                # must find the tables as they were there.
                self._open_catalog()
        except psycopg.Error as exc:
            raise translate(exc) from exc

    # -- gears ---------------------------------------------------------------

    def _gear(self) -> str:
        if self._forced_gear is not None:
            return self._forced_gear
        lag = self._measure_lag()
        position = self._writer.position
        if position < self._bulk_again:
            return "live"
        state = read_slot(self._side, self._config.source.slot)
        restart = state.restart_lsn
        if restart is not None and position - restart > BULK_REREAD_BYTES + lag:
            return "live"
        if lag > BULK_ENTER_BYTES or self._until is not None:
            return "bulk"
        return "live"

    def _run_bulk(self) -> None:
        """Drain the backlog by SQL, or as much of it as the server can hold for us."""
        self._conn.execute(f"SET statement_timeout = {BULK_TIMEOUT_MS}".encode())
        # The server collects a peek's messages before it sends the first: in memory, if it may.
        self._conn.execute(f"SET work_mem = '{BULK_WORK_MEM}'".encode())
        # A peek goes on for a while in the server after we are gone, and with it our lock.
        self._conn.execute("SET client_connection_check_interval = '1s'")
        try:
            self._drain_backlog()
        except SourceExhausted as error:
            logger.warning("bulk gear: %s; going on live", error.message)
            self._bulk_again = self._server_position()
        if not self._stop.is_set():  # else a COPY may be under way, and the session ends
            self._conn.execute("SET statement_timeout = 0")

    def _drain_backlog(self) -> None:
        """Peek, make durable, advance, until the backlog is small."""
        decoder = self._decoder()
        while not self._finished():
            position = self._writer.position
            advance(self._conn, self._config.source.slot, position)
            fault("after_confirm")
            upto = min(self._server_position(), Lsn(position + BULK_WAL_BYTES))
            if upto <= position:
                return
            if not self._peek(decoder, upto):
                return
            if self._until is None and self._measure_lag() < BULK_LEAVE_BYTES:
                break
        advance(self._conn, self._config.source.slot, self._writer.position)

    def _peek(self, decoder: Decoder, upto: Lsn) -> bool:
        """One batch of the backlog; False if we were told to stop."""
        decoder.resume(self._writer.position)
        buffer = self._buffer()
        messages = 0
        session = BulkSession(self._conn, self._start.stream, upto, BULK_MESSAGES)
        try:
            finished = False
            while not finished:
                received = session.receiver.get(0.25)
                if received is not None:
                    finished = received.finished
                    messages += received.chunk.count
                    self._take(decoder, buffer, received)
                    session.receiver.release(received)
                if buffer.full:
                    self._flush(decoder, buffer, buffer.end)
                if self._stop.is_set():
                    self._flush(decoder, buffer, buffer.end)
                    return False  # the session's end closes the connection under the COPY
                self._tick()
        finally:
            session.close()
        covered = max(upto, buffer.end) if messages < BULK_MESSAGES else buffer.end
        self._flush(decoder, buffer, covered)
        return True

    def _run_live(self) -> None:
        """Stream with feedback until stopped, current, or so far behind that bulk pays."""
        decoder = self._decoder()
        buffer = self._buffer()
        session = LiveSession(
            self._config.source.url.reveal(), self._start.stream, self._writer.position
        )
        receiver = session.receiver
        asked_at = time.monotonic()
        keepalive = Lsn(0)
        try:
            while not self._finished():
                received = receiver.get(self._patience(buffer))
                if received is not None:
                    self._take(decoder, buffer, received)
                    if not decoder.in_transaction:
                        keepalive = max(keepalive, received.keepalive)
                    receiver.release(received)
                vouched = max(buffer.end, keepalive)
                if self._flush_due(buffer, vouched):
                    self._flush(decoder, buffer, vouched)
                    receiver.confirm(self._writer.position)
                    fault("after_confirm")
                if time.monotonic() - asked_at > LAG_INTERVAL_S:
                    asked_at = time.monotonic()
                    lag = self._measure_lag()
                    self._heartbeat()
                    if lag > 2 * BULK_ENTER_BYTES and self._gear() == "bulk":
                        break
                self._tick()
            self._flush(decoder, buffer, max(buffer.end, keepalive))
            receiver.confirm(self._writer.position)
        finally:
            session.close()

    # -- the path of a chunk ---------------------------------------------------

    def _take(self, decoder: Decoder, buffer: RowBuffer, received: Received) -> None:
        if received.chunk.count:
            fault("after_receive")
            buffer.add(decoder.decode(received.chunk), decoder.slots)
        if self._publication_touched:
            self._publication_touched = False
            # Before anything is vouched for: rows after the change may be missing.
            check_publications(self._side, self._config.source.slot)

    def _flush_due(self, buffer: RowBuffer, vouched: Lsn) -> bool:
        now = time.monotonic()
        if buffer.full or (self._until is not None and vouched >= self._until):
            return vouched > self._writer.position
        if buffer.since is not None:
            return now - buffer.since >= self._flush_interval()
        if vouched <= self._writer.position:
            return False
        # Nothing to log, only a position to vouch for: rarely, or when someone waits for it.
        return self._until is not None or now - self._idle_commit_at >= IDLE_COMMIT_INTERVAL_S

    def _flush_interval(self) -> float:
        """As configured; wider when flushing would otherwise eat the time to decode."""
        # The flush itself takes time too: start early enough to be visible in time.
        interval = self._config.log.flush_interval - self._flush_seconds
        return max(interval, self._flush_seconds / BUSY_FLUSH_SHARE, 0.005)

    def _patience(self, buffer: RowBuffer) -> float:
        if buffer.since is None:
            return 0.25
        left = buffer.since + self._flush_interval() - time.monotonic()
        return min(max(left, 0.0), 0.25)

    def _flush(self, decoder: Decoder, buffer: RowBuffer, position: Lsn) -> None:
        """Make everything complete durable, with its position."""
        if not buffer.waiting and position <= self._writer.position:
            return
        began = time.monotonic()
        self._shapes.persist()
        handed_over = buffer.handed_over
        parts = buffer.take_parts(decoder.slots)
        self._writer.commit(parts, max(position, self._writer.position), self._start.timeline)
        fault("after_commit")
        self._idle_commit_at = time.monotonic()
        if parts:
            self._flush_seconds += 0.3 * (self._idle_commit_at - began - self._flush_seconds)
        self._upkeep.committed()
        progress = self._progress
        progress.position = self._writer.position
        progress.commits += 1
        progress.events += buffer.handed_over - handed_over
        progress.counters = self._counters(decoder)

    def _counters(self, decoder: Decoder) -> dict[str, int]:
        catalog = self._catalog.counters
        return {
            "filtered_rows": decoder.filtered,
            "filtered_ddl": catalog.filtered_ddl,
            "forged_ddl": catalog.forged_ddl,
            "unknown_ddl": catalog.unknown_ddl,
            "heartbeats": catalog.heartbeats,
        }

    # -- what the source is asked -------------------------------------------------

    def _finished(self) -> bool:
        if self._stop.is_set():
            return True
        return self._until is not None and self._writer.position >= self._until

    def _server_position(self) -> Lsn:
        self._progress.server = flush_lsn(self._side)
        return self._progress.server

    def _measure_lag(self) -> int:
        return max(0, self._server_position() - self._writer.position)

    def _current_position(self) -> Lsn:
        """An LSN that everything committed before now lies before, and that is flushed."""
        if self._side.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone() != (True,):
            # Its own commit record flushes whatever asynchronous commits left in memory.
            self._side.execute("SET synchronous_commit = local")
            self._side.execute(
                "SELECT pg_catalog.pg_logical_emit_message(true, %s, '')", [HEARTBEAT_PREFIX]
            )
        return self._server_position()

    def _heartbeat(self) -> None:
        """Give the server something to decode when its keep-alives do not move us."""
        idle = time.monotonic() - self._idle_commit_at
        if idle > HEARTBEAT_INTERVAL_S and self._progress.lag_bytes > 0:
            self._idle_commit_at = time.monotonic()
            self._side.execute(
                "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')"
                " WHERE NOT pg_catalog.pg_is_in_recovery()",
                [HEARTBEAT_PREFIX],
            )

    def _open_catalog(self) -> None:
        config = self._config
        log = Storage(config.log.path, config.log.storage)
        self._shapes = ShapeStore(log, self._writer.position)
        self._catalog = TableCatalog(
            self._shapes,
            TablePatterns(config.source.tables),
            key=self._start.key,
            live_layout=lambda oid: read_layouts(self._side, oid=oid).get(oid),
            on_ddl=self._on_ddl,
            generated=self._start.publishes_generated,
        )

    def _on_ddl(self, command: DdlCommand) -> None:
        """A change of our own publication must not go unnoticed."""
        if "PUBLICATION" in command.tag:
            self._publication_touched = True

    def _decoder(self) -> Decoder:
        return Decoder(self._catalog, resume=self._writer.position)

    def _buffer(self) -> RowBuffer:
        return RowBuffer(self._writer, self._config.log.buffer)
