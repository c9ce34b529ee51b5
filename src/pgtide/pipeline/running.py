"""A pipeline: reads the log, hands batches to its sink, remembers how far it has come.

First the history, in chunks of one version of the log, then the stream of what comes. Parked
tables that somebody wants back are taken up between two batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgtide.config.model import Config
from pgtide.errors import LogGap, PgtideError, TargetClosed, TargetUnavailable
from pgtide.log.reader import Log
from pgtide.log.readers import update_reader
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.pipeline import parking
from pgtide.pipeline.delivery import Delivery
from pgtide.pipeline.file_census import census_of_files
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.reading import LogFrames, bounds_of
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.widening import START, Reselection, recall
from pgtide.position import Lsn, Position
from pgtide.sinks import Scope, Sink
from pgtide.sinks.opening import open_sink
from pgtide.spark.failures import as_pgtide_error
from pgtide.spark.paths import spark_path

logger = logging.getLogger(__name__)

POLL_S = 0.2
REQUESTS_S = 1.0  # between two looks whether somebody wants parked tables resumed
FINISH_S = 10.0  # time that a batch has to finish when the pipeline is to stop


class PipelineRun:
    """One run of a pipeline, until it is told to stop, is current, or fails."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        name: str,
        *,
        stop: threading.Event | None = None,
        on_batch: Callable[[str, State], None] | None = None,
        start: Position | None = None,
        lease: Lease | None = None,
    ) -> None:
        """``start``: where a new pipeline begins, by default where the log does.

        ``lease``: the right to run it, if the caller holds that already.
        """
        self._spark = spark
        self._settings = config.pipelines[name]
        self._name = name
        self._stop = stop or threading.Event()
        self._on_batch = on_batch
        self._start = start or Position(Lsn(0))
        self._lease = lease
        self._storage = Storage(config.log.path, config.log.storage)
        self._log = Log(config.log.path, config.log.storage)
        self._frames = LogFrames(spark, self._storage)
        self._file = StateFile(self._storage, name)
        self._batch_lock = threading.Lock()  # held while a batch or a resumption goes on
        self._looked_at = 0.0

    def run(self, *, until_current: bool = False) -> State:
        """Deliver what the log holds, then what comes, or only what is there now."""
        with nullcontext() if self._lease else Lease(self._storage, self._name):
            try:
                return self._run(until_current)
            except (PgtideError, PySparkException, Py4JError) as error:
                failure = as_pgtide_error(error, self._doing)
                self._file.note_error(failure)
                if failure is error:
                    raise
                raise failure from error

    def _run(self, until_current: bool) -> State:
        sink = open_sink(self._settings, self._spark, self._storage)
        try:
            state = self._file.load()
            state = self._begin(sink) if state is None else state
            self._go_on(state, sink)
            delivery = Delivery(
                spark=self._spark,
                name=self._name,
                settings=self._settings,
                storage=self._storage,
                file=self._file,
                state=state,
                sink=sink,
                stop=self._stop,
                on_batch=self._on_batch,
            )
            self._deliver(delivery, until_current)
        finally:
            sink.close()
        self._file.clear_error()
        return state

    def _deliver(self, delivery: Delivery, until_current: bool) -> None:
        state = delivery.state
        delivery.keep()
        try:
            if state.resuming is not None:
                delivery.resume()  # it ends at the position that the history goes on from
            self._history(delivery)
            delivery.resume()
            if not self._stop.is_set() and not (until_current and self._nothing_new(state)):
                self._stream(delivery, until_current)
        except TargetClosed:
            pass  # nobody wants more: that is no failure

    @property
    def _doing(self) -> str:
        return f"running pipeline {self._name}"

    # -- the beginning ----------------------------------------------------------------

    def _begin(self, sink: Sink) -> State:
        """Register before anything is looked at: from here on nothing is cleaned away.

        A target that tells how far it is, and with which tables, has lost no more than this state.
        """
        kept, reached = sink.kept(self._name), sink.reached(Scope(self._name))
        start = max(self._start, reached.next) if reached and reached > START else self._start
        known = self._log.snapshot()
        self._refuse_gap(known, start)
        update_reader(self._storage, parking.reader_name(self._name), known.version, start)
        snapshot = self._log.snapshot()
        self._refuse_gap(snapshot, start)
        self._file.clear_stream()
        cuts = self._frames.cuts(snapshot, start, self._settings.batch)
        tables = kept.tables if kept is not None and start > self._start else None
        state = State.new(snapshot.version, start, cuts, tables or list(self._settings.tables))
        if kept is not None:
            state.left = dict(kept.left)
            state.parked = dict(kept.parked)
        if state.parked:
            self._file.ask_resume(None)  # one of them may have been on its way
        self._file.save(state)
        parking.register(self._storage, self._name, state, snapshot.version)
        return state

    def _go_on(self, state: State, sink: Sink) -> None:
        """Check that nothing is missing: somebody may have made the log forget this reader."""
        if recall(state, sink.kept(self._name)):
            self._file.save(state)
        if state.tables != self._settings.tables:
            reselection = Reselection(self._name, self._settings, self._file, state, sink)
            reselection.run(self._log.shapes().values(), self._log.snapshot())
        oldest = min([state.position, *(parked.position for parked in state.parked.values())])
        self._refuse_gap(self._log.snapshot(), oldest)
        version = self._file.needed_version(state)
        parking.register(self._storage, self._name, state, version)
        self._refuse_gap(self._log.snapshot(), oldest)  # retention may have been under way
        if state.stream_began and not self._file.streams:
            self._begin_again(state, "has lost its stream's checkpoint")
        elif self._storage.child(CHANGES).read(commit_path(version)) is None:
            self._begin_again(state, "was forgotten, and the log has cleaned what it was at")

    def _begin_again(self, state: State, why: str) -> None:
        """The stream cannot go on: what comes after the position is history now.

        The newest version of the log will do, be those that it was at cleaned away.
        """
        logger.warning("pipeline %s %s; it goes on at %s", self._name, why, state.position)
        snapshot = self._log.snapshot()
        self._file.clear_stream()  # parts may be left
        cuts = self._frames.cuts(snapshot, state.position, self._settings.batch)
        state.begin_again(snapshot.version, cuts)
        self._file.save(state)
        parking.register(self._storage, self._name, state, snapshot.version)

    def _refuse_gap(self, snapshot: Snapshot, start: Position) -> None:
        if start.lsn >= snapshot.complete_from:
            return
        raise LogGap(
            "the log no longer holds everything that the pipeline needs",
            detail=f"Pipeline {self._name} needs {start} and later; retention has kept "
            f"{snapshot.complete_from} and later. Its tables would lack rows.",
            hint="To have its tables read at the source again, and the rest from the log: pgtide "
            f"replay --pipeline {self._name}. For a target that is complete up to there or takes "
            f"events only: pgtide replay --pipeline {self._name} --from {snapshot.complete_from}",
        )

    # -- the history, then the stream ---------------------------------------------------

    def _history(self, delivery: Delivery) -> None:
        state = delivery.state
        while state.chunks_done < len(state.chunks) and not self._stop.is_set():
            number = state.chunks_done
            # A stream that was lost may have ended inside a transaction: so may chunks begin.
            bounds = bounds_of(state.position, state.chunks, number)
            frame = self._frames.between(state.version, *bounds)
            # Any version will do: rows between two positions never change.
            files = self._log.snapshot().files
            census = census_of_files(self._log.changes, files, *bounds)
            delivery.deliver(frame, "history", number, census)
            state.chunks_done += 1
            delivery.done(state.version)

    def _nothing_new(self, state: State) -> bool:
        """Whether the history was everything; the stream begins with the next run then."""
        return not self._file.streams and self._log.snapshot().version == state.version

    def _stream(self, delivery: Delivery, until_current: bool) -> None:
        state = delivery.state
        if not state.stream_began:
            # Before anything can be written: then a lost checkpoint is known as such.
            state.stream_began = True
            self._file.save(state)
        start = None if self._file.streams else state.version
        frame = self._frames.stream(start, state.boundary, self._settings.batch)
        failed: list[BaseException] = []

        def deliver(batch: DataFrame, number: int) -> None:
            try:
                with self._exclusively():
                    delivery.deliver(batch, "stream", number)
                    delivery.done(self._file.needed_version(state))
            except BaseException as error:
                failed.append(error)
                raise

        writer = frame.writeStream.foreachBatch(deliver).queryName(self._name)
        writer = writer.option("checkpointLocation", spark_path(self._file.stream.root))
        if until_current:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._settings.interval} seconds")
        query = writer.start()
        try:
            self._watch(query, delivery)
        finally:
            query.stop()
        error = failed[0] if failed else query.exception()
        if error is not None and not self._stop.is_set():
            raise as_pgtide_error(error, self._doing) from error

    def _watch(self, query: StreamingQuery, delivery: Delivery) -> None:
        while query.isActive and not self._stop.is_set():
            self._stop.wait(POLL_S)
            if time.monotonic() - self._looked_at > REQUESTS_S:
                self._looked_at = time.monotonic()
                self._attend(delivery)
        # What is being written may end well; if that takes too long it is done again later.
        if self._batch_lock.acquire(timeout=FINISH_S):
            self._batch_lock.release()

    def _attend(self, delivery: Delivery) -> None:
        """Between batches: do what somebody asked for."""
        if self._file.requests() and self._batch_lock.acquire(blocking=False):
            try:
                delivery.resume()
            finally:
                self._batch_lock.release()

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """While no resumption goes on; gives up when the pipeline is to stop."""
        while not self._batch_lock.acquire(timeout=POLL_S):
            if self._stop.is_set():
                raise TargetUnavailable("the pipeline is stopping")
        try:
            yield
        finally:
            self._batch_lock.release()
