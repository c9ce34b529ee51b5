"""One capture session: from opening the log and the source to the first failure or stop.

The session decides between the gears and confirms; ``Flow`` makes chunks
durable. All of its state is thrown away with it; V in the log is what the next
one starts from.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self

import psycopg

from pgtide.capture.bulk import BulkSession
from pgtide.capture.faults import fault
from pgtide.capture.flow import Flow
from pgtide.capture.live import LiveSession
from pgtide.capture.progress import Progress
from pgtide.capture.receive import Receiver
from pgtide.capture.refresher import Refresher
from pgtide.capture.startup import Start, check_source
from pgtide.capture.stream import advance, check_slot, flush_lsn, readable_lsn
from pgtide.capture.tables import HEARTBEAT_PREFIX
from pgtide.capture.upkeep import Upkeep
from pgtide.capture.warm import warm
from pgtide.config import Config
from pgtide.errors import SourceError, SourceExhausted
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.connection import connect, translate
from pgtide.postgres.slot import read_slot

logger = logging.getLogger(__name__)

BULK_ENTER_BYTES = 32 << 20  # WAL behind the server at which the bulk gear pays
BULK_LEAVE_BYTES = 4 << 20
BULK_REREAD_BYTES = 512 << 20  # every batch reads again from the slot's restart point
BULK_WAL_BYTES = 1 << 30  # at a time, so that a call over unpublished WAL ends
BULK_CONFIRM_INTERVAL_S = 5.0  # to confirm costs the server as much as to read without output
LAG_INTERVAL_S = 1.0  # how often a live session asks the server where it is
HEARTBEAT_INTERVAL_S = 30.0
STANDBY_WAIT_S = 0.2  # between looks at what the standbys have that must be ahead of us


class Tick(Protocol):
    """Called a few times a second."""

    def __call__(self, *, force: bool = False) -> None: ...


class CaptureSession:
    """Opens everything on entering; closes it on leaving."""

    def __init__(
        self,
        config: Config,
        progress: Progress,
        stop: threading.Event,
        gear: str | None,
        *,
        hurried: bool = False,
    ) -> None:
        self._config = config
        self._progress = progress
        self._stop = stop
        self._forced_gear = gear
        self._hurried = hurried
        self._heartbeat_at = self._advanced_at = 0.0
        self._not_beyond: Lsn | None = None  # where the log is to end exactly
        self._bulk_again = Lsn(0)  # a batch failed: live until V is past this

    def __enter__(self) -> Self:
        config = self._config
        self._writer = LogWriter(config.log.path, config.log.storage, config.source.slot)
        # Two SQL sessions: one holds the lock and reads, the other can be asked at any time.
        self._conn = connect(config.source.url.reveal(), application_name="pgtide capture")
        self._side = self._conn
        try:
            self._side = connect(config.source.url.reveal(), application_name="pgtide capture")
            self._start = check_source(config, self._conn, self._writer)
            self._upkeep = Upkeep(config, self._writer)
            self._encoder = ThreadPoolExecutor(1, thread_name_prefix="pgtide-encode")
            self._refresher = Refresher(
                config, self._start.stream.publications, self._writer.position
            )
        except psycopg.Error as exc:
            self._close()
            raise translate(exc) from exc
        except BaseException:
            self._close()
            raise
        self._progress.position = self._writer.position
        return self

    def __exit__(self, *_: object) -> None:
        self._refresher.close()
        self._upkeep.close()
        self._encoder.shutdown(cancel_futures=True)
        self._close()

    def _close(self) -> None:
        self._conn.close()
        self._side.close()

    def run(self, *, until_current: bool, tick: Tick) -> None:
        """Stream until stopped, or until everything from before the call is in the log."""
        self._tick = tick
        try:
            self._until = self._current_position() if until_current else None
            self._refresher.start(self._side)
            while not self._finished():
                if self._gear() == "bulk":
                    self._progress.gear = "bulk"
                    self._run_bulk()
                else:
                    self._progress.gear = "live"
                    self._run_live()
                fault("switching_gear")
        except psycopg.Error as exc:
            raise translate(exc) from exc

    @property
    def writer(self) -> LogWriter:
        """The log's appender; nobody else has one while the session is open."""
        return self._writer

    @property
    def start(self) -> Start:
        """What the checks at the beginning found."""
        return self._start

    def catch_up(self, until: Lsn, *, tick: Tick) -> None:
        """Bring the log to exactly ``until``, the end of a record of the WAL, and stop there.

        By the bulk gear alone: the live one does not stop at a record. Nothing tidies the log up
        afterwards, so that what others write into it is safe from that.
        """
        self._tick, self._until, self._not_beyond = tick, until, until
        try:
            if self._writer.position < until:
                self._advance()
                bulk = BulkSession(self._conn, self._start.stream, self._writer.position)
                try:
                    while not self._finished():
                        self._drain_backlog(bulk)
                        self._stop.wait(0 if self._finished() else STANDBY_WAIT_S)
                finally:
                    bulk.close()
                self._advance()
        except psycopg.Error as exc:
            raise translate(exc) from exc
        self._upkeep.close()

    # -- gears ---------------------------------------------------------------

    def _gear(self) -> str:
        if self._forced_gear is not None:
            return self._forced_gear
        lag = self._measure_lag()
        position = self._writer.position
        if position < self._bulk_again or self._is_current():
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
        self._advance()  # the copy begins where the log ends
        try:
            bulk = BulkSession(self._conn, self._start.stream, self._writer.position)
            try:
                self._drain_backlog(bulk)
            finally:
                bulk.close()
        except SourceError:
            check_slot(self._side, self._config.source.slot, self._writer.position)
            raise
        except SourceExhausted as error:
            logger.warning("bulk gear: %s; going on live", error.message)
            self._bulk_again = self._server_position()
        self._advance()
        fault("after_confirm")

    def _drain_backlog(self, bulk: BulkSession) -> None:
        """Stretch by stretch, until little is left."""
        flow: Flow | None = None
        while not self._finished():
            position = self._writer.position
            readable = readable_lsn(self._side, self._start.stream)
            upto = min(readable, Lsn(position + BULK_WAL_BYTES), self._not_beyond or readable)
            if upto <= position:
                self._bulk_again = self._server_position()
                return
            receiver = bulk.ask(upto)
            flow = flow or self._flow()
            self._take_stretch(flow, receiver, upto)
            if self._until is None and self._measure_lag() < BULK_LEAVE_BYTES:
                return

    def _take_stretch(self, flow: Flow, receiver: Receiver, upto: Lsn) -> None:
        """Make one stretch durable."""
        finished = False
        while not finished:
            received = receiver.get(0.25)
            if received is not None:
                finished = received.finished
                flow.take(received)
                receiver.release(received)
            if flow.pour() and time.monotonic() - self._advanced_at > BULK_CONFIRM_INTERVAL_S:
                self._advance()
                fault("after_confirm")
            self._tick()
            if self._stop.is_set():
                break
        # At the end everything up to there was looked at, published or not.
        flow.flush(max(upto, flow.end) if finished else flow.end)

    def _advance(self) -> None:
        advance(self._side, self._config.source.slot, self._writer.position)
        self._advanced_at = time.monotonic()

    def _run_live(self) -> None:
        """Stream with feedback until stopped, current, or so far behind that bulk pays."""
        session = LiveSession(
            self._config.source.url.reveal(),
            self._start.stream,
            self._writer.position,
            gather_s=self._config.log.flush_interval / 20,
        )
        receiver = session.receiver
        asked_at = time.monotonic()
        keepalive = Lsn(0)
        try:
            # Now that nobody else can move it: the server goes on where the slot is confirmed.
            check_slot(self._side, self._config.source.slot, self._writer.position)
            flow = self._flow()
            while not self._finished():
                received = receiver.get(flow.patience())
                if received is not None:
                    flow.take(received)
                    if not flow.in_transaction:
                        keepalive = max(keepalive, received.keepalive)
                    receiver.release(received)
                committed = flow.pour()
                vouched = max(flow.end, keepalive)
                if flow.due(vouched, until=self._until, hurried=self._hurried):
                    flow.flush(vouched)
                    committed = True
                if committed:
                    receiver.confirm(self._writer.position)
                    fault("after_confirm")
                if time.monotonic() - asked_at > LAG_INTERVAL_S:
                    asked_at = time.monotonic()
                    lag = self._measure_lag()
                    self._heartbeat(flow)
                    if lag > 2 * BULK_ENTER_BYTES and self._gear() == "bulk":
                        break
                self._tick()
            flow.flush(max(flow.end, keepalive))
            receiver.confirm(self._writer.position)
        finally:
            session.close()

    # -- what the source is asked -------------------------------------------------

    def _finished(self) -> bool:
        if self._stop.is_set():
            return True
        return self._refresher.idle and self._is_current()

    def _is_current(self) -> bool:
        """Whether everything is in the log that somebody waits for."""
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

    def _heartbeat(self, flow: Flow) -> None:
        """Give the server something to decode when its keep-alives do not move us."""
        now = time.monotonic()
        since = max(flow.committed_at, self._heartbeat_at)
        if now - since > HEARTBEAT_INTERVAL_S and self._progress.lag_bytes > 0:
            self._heartbeat_at = now
            self._side.execute(
                "SELECT pg_catalog.pg_logical_emit_message(false, %s, '')"
                " WHERE NOT pg_catalog.pg_is_in_recovery()",
                [HEARTBEAT_PREFIX],
            )

    def _flow(self) -> Flow:
        """To be called when the server is at work: loading compiled code takes 0.2 s."""
        warm()
        # Parts of a transaction that was cut off are nobody's, once they are written.
        self._encoder.submit(self._writer.uncommitted.clear).result()
        return Flow(
            self._config,
            self._start,
            self._writer,
            self._upkeep,
            self._progress,
            self._side,
            self._encoder,
            self._refresher.windows,
            self._refresher.rewritten,
        )
