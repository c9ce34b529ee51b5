"""The snapshot: every row that is there at a point C of the WAL, into the log in one commit.

    lock, slot at C ──▶ [log to C] ──▶ shapes ──▶ copy (Spark) ──▶ commit rows, V = C ──▶ slot to C

The rows are ``read`` events at (C - 1, …): everything that committed before C is in them, and
what commits later is in the stream. A log without events skips the stream up to C. One that
has events is brought to exactly C first, and sweeps tell targets that what is older and was
not read again is gone. Until the commit nothing has happened, whatever dies when; then
everything has.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from deltalake.transaction import AddAction
from psycopg import conninfo

from pgtide.capture.faults import fault
from pgtide.capture.pacing import is_time
from pgtide.capture.progress import Progress
from pgtide.capture.session import CaptureSession
from pgtide.capture.startup import check_publications
from pgtide.capture.stream import advance
from pgtide.config import Config
from pgtide.errors import LogError, SlotBusy, SourceError, SourceExhausted, TransientError
from pgtide.log.shapes import ShapeStore
from pgtide.log.snapshot import newest_snapshot
from pgtide.log.source import history_app_id
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.snapshot.chunks import Chunk, plan_chunks, units
from pgtide.snapshot.ending import Ending
from pgtide.snapshot.keeper import APPLICATION, Held, Keeper
from pgtide.snapshot.progress import OnProgress, SnapshotProgress, Stage
from pgtide.snapshot.request import Request, capturing, requested
from pgtide.snapshot.tables import Selection
from pgtide.snapshot.task import Copier, Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgtide.snapshot.target_schemas import TargetSchemas

logger = logging.getLogger(__name__)

BUSY_PATIENCE_S = 3.0  # a capture that was killed leaves its lock for a moment


class InitialSnapshot:
    """Takes one; ``stop`` ends it without a trace."""

    def __init__(
        self,
        config: Config,
        spark: SparkSession,
        request: Request | None = None,
        *,
        stop: threading.Event | None = None,
        on_progress: OnProgress | None = None,
        schemas: TargetSchemas | None = None,
    ) -> None:
        """``schemas``: of targets that are to be made as the source is at the snapshot."""
        self._config = config
        self._spark = spark
        self._request = request or Request()
        self._stop = stop or threading.Event()
        self._on_progress = on_progress
        self._schemas = schemas
        self.progress = SnapshotProgress()

    def take(self) -> bool:
        """True once the rows are in the log; False if it was stopped before."""
        self._wait_for_window()
        session = self._open_session()
        try:
            return not self._stop.is_set() and self._take(session)
        except psycopg.Error as exc:
            raise translate(exc) from exc
        finally:
            session.__exit__()

    def _take(self, session: CaptureSession) -> bool:
        url = self._config.source.url.reveal()
        log = newest_snapshot(session.writer.storage)
        fresh = log.empty and self._request.whole
        publications = session.start.stream.publications

        def select(conn: SqlConnection) -> Selection:
            return requested(conn, self._config, self._request, publications)

        self._say("locking")
        with Keeper(url, select, self._stop) as keeper:
            held = keeper.held
            if held is None or self._stop.is_set():
                return False
            self.progress.point = held.point
            self.progress.left_out = held.selection.left_out
            self._read_schemas(keeper.conn, held)
            if not fresh:
                self._catch_up(session, held.point)
                if self._stop.is_set():
                    return False
            selection = self._with_shapes(held)
            fault("snapshot_shapes")
            ending = Ending.of(selection, swept=not fresh)
            chunks = plan_chunks(
                keeper.conn,
                selection,
                self._config.history.chunk_bytes,
                tasks=self._parallelism,
                first=ending.first_chunk,
            )
            try:
                parts = self._copy(keeper.conn, held, selection, chunks)
            except SourceError:
                keeper.check()  # which may know of a passing reason
                raise
            if parts is None:
                return False
            fault("snapshot_copied")
            self._say("committing")
            keeper.check()
            with self._schemas.making(held.point) if self._schemas else nullcontext():
                self._commit(session, held, ending.behind(len(chunks)), parts)
                fault("snapshot_schema")
        fault("snapshot_committed")
        self._advance(held.point)
        self._say("done")
        return True

    # -- steps ------------------------------------------------------------------------

    def _open_session(self) -> CaptureSession:
        """A capture's session, for its lock, its checks and its appender."""
        deadline = time.monotonic() + BUSY_PATIENCE_S
        while True:
            try:
                return CaptureSession(self._config, Progress(), self._stop, "bulk").__enter__()
            except SlotBusy as exc:
                if time.monotonic() > deadline:
                    raise capturing() from exc
                self._stop.wait(0.2)

    def _read_schemas(self, conn: SqlConnection, held: Held) -> None:
        if self._schemas is not None:
            self._say("reading the schema")
            self._schemas.read(conn, held)
            views = ("view ", "materialized view ")  # they are made with the schema
            rows = [text for text in held.selection.left_out if not text.startswith(views)]
            unlogged = "unlogged table "  # so are these, without their rows
            rows = [f"the rows of {r}" if r.startswith(unlogged) else r for r in rows]
            self.progress.left_out = (*rows, *self._schemas.notes)

    def _catch_up(self, session: CaptureSession, point: Lsn) -> None:
        """Bring the log to C, so that what is read there comes behind all that it has."""
        self._say("catching up")
        try:
            session.catch_up(point, tick=self._tick)
        except SourceExhausted as exc:
            raise SourceError(
                "the log cannot be brought to the snapshot's point",
                detail=f"The server gave up on a batch of changes: {exc.message}.",
                hint="Run pgtide capture --until-current with source.snapshot: never, then again: "
                "pgtide snapshot",
            ) from exc
        if not self._stop.is_set() and session.writer.position != point:
            raise LogError(
                "the log did not stop where the snapshot is",
                detail=f"It is at {session.writer.position}, the snapshot at {point}.",
                hint="Run pgtide snapshot again.",
            )

    def _with_shapes(self, held: Held) -> Selection:
        """The tables with the ids of their shapes, which are in the log by then."""
        store = ShapeStore(Storage(self._config.log.path, self._config.log.storage), held.point)
        # One below, as everything that is no transaction: one may commit exactly there.
        since = Lsn(held.point - 1)
        for layout in held.selection.layouts:
            store.assign(replace(layout, since=since))
        tables = [
            replace(table, shape=store.assign(replace(table.shape, since=since)))
            for table in held.selection.tables
        ]
        store.persist()
        return replace(held.selection, tables=tuple(tables))

    def _copy(
        self, conn: SqlConnection, held: Held, selection: Selection, chunks: Sequence[Chunk]
    ) -> list[AddAction] | None:
        """The files that hold the rows; None if it was stopped."""
        from pgtide.snapshot.spark_copy import copy_units  # Spark comes with it

        config = self._config
        names = [table.shape.name for table in selection.tables]
        self.progress.plan(names, chunks)
        self._say("copying")
        parallelism = self._parallelism
        rate = config.history.max_rate
        copier = Copier(
            url=_portable(config.source.url.reveal(), conn),
            snapshot=held.snapshot,
            log_path=config.log.path,
            storage=dict(config.log.storage),
            lsn=Lsn(held.point - 1),
            taken_at=held.taken_at,
            rows_per_second=rate / parallelism if rate else None,
        )
        parts: list[AddAction] = []

        def on_outcome(unit: Sequence[Chunk], outcome: Outcome) -> None:
            parts.extend(outcome.parts)
            for chunk in unit:
                self.progress.copied(chunk, outcome.rows[chunk.number])
            self._tick()

        complete = copy_units(
            self._spark.sparkContext,
            copier,
            units(chunks, config.history.chunk_bytes),
            parallelism=parallelism,
            stop=self._stop,
            on_outcome=on_outcome,
            on_wait=self._tick,
        )
        return parts if complete else None

    @property
    def _parallelism(self) -> int:
        """How many tasks read at a time."""
        return self._config.history.parallelism or self._spark.sparkContext.defaultParallelism

    def _commit(
        self,
        session: CaptureSession,
        held: Held,
        ending: Ending,
        parts: Sequence[AddAction],
    ) -> None:
        """Make it all true."""
        rows = {name: table.rows for name, table in self.progress.tables.items()}
        first, last = ending.rows(held, rows)
        before = session.writer.write_part(first)
        behind = session.writer.write_part(last)
        fault("snapshot_written")
        with connect(self._config.source.url.reveal(), application_name=APPLICATION) as conn:
            check_publications(conn, self._config.source.slot)
        session.writer.commit(
            # In the order of their rows: a stream takes files as they are named.
            [*before, *sorted(parts, key=_first_seq), *behind],
            held.point,
            session.start.timeline,
            # Some tables are not the history of all.
            {history_app_id(self._config.source.slot): int(held.point)}
            if self._request.whole
            else None,
        )

    def _advance(self, point: Lsn) -> None:
        """The rows are in the log: where this fails, the next capture does it."""
        try:
            with connect(self._config.source.url.reveal(), application_name=APPLICATION) as conn:
                advance(conn, self._config.source.slot, point)
        except (psycopg.Error, TransientError) as exc:
            error = translate(exc) if isinstance(exc, psycopg.Error) else exc
            logger.warning("the slot was not advanced, capture will: %s", error.message)

    # -- saying and waiting -----------------------------------------------------------

    def _say(self, stage: Stage) -> None:
        self.progress.stage = stage
        self._tick()

    def _tick(self, *, force: bool = False) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _wait_for_window(self) -> None:
        """``history.window`` says when it may begin; once begun, it goes on to the end."""
        while not is_time(self._config.history.window) and not self._stop.is_set():
            self._say("waiting")
            self._stop.wait(1.0)


def _portable(url: str, conn: SqlConnection) -> str:
    """The connection string with its password: executors have not the driver's password file."""
    if conn.info.password:
        return conninfo.make_conninfo(url, password=conn.info.password)
    return url


def _first_seq(part: AddAction) -> int:
    statistics = json.loads(part.stats)
    return int(statistics["minValues"]["seq"])
