"""A pipeline: reads the log, hands batches to its sink, remembers how far it has come.

First the history, in chunks of one version of the log, then the stream of what comes. Parked
tables that somebody wants back are taken up between two batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgtide.config.model import Config
from pgtide.errors import PgtideError, TargetClosed, TargetUnavailable
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.pipeline.beginning import Beginning
from pgtide.pipeline.delivery import Delivery
from pgtide.pipeline.file_census import Between, census_of_log
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.reading import LogFrames, bounds_of
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.stream_census import stream_census
from pgtide.position import Lsn, Position
from pgtide.sinks.opening import open_sink
from pgtide.spark.failures import as_pgtide_error
from pgtide.spark.paths import spark_path

POLL_S = 0.2
REQUESTS_S = 1.0  # between two looks whether somebody wants parked tables resumed
FINISH_S = 10.0  # time that a batch has to finish when the pipeline is to stop


class _BatchFailed(Exception):
    """All that Spark hears of a failure, which is known here.

    When a query is stopped it looks through the whole text for causes, by an expression that runs
    out of stack where that is long.
    """


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
        self._lease = lease
        self._storage = Storage(config.log.path, config.log.storage)
        self._log = Log(config.log.path, config.log.storage)
        self._frames = LogFrames(spark, self._storage)
        self._file = StateFile(self._storage, name)
        start = start or Position(Lsn(0))
        self._beginning = Beginning(
            name, self._settings, self._storage, self._file, self._frames, start
        )
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
            state = self._beginning.state(sink)
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
            delivery.resume()  # first: what comes next may stop until a table is back
            self._history(delivery)
            delivery.resume()
            if not self._stop.is_set() and not (until_current and self._nothing_new(state)):
                self._stream(delivery, until_current)
        except TargetClosed:
            pass  # nobody wants more: that is no failure

    @property
    def _doing(self) -> str:
        return f"running pipeline {self._name}"

    # -- the history, then the stream ---------------------------------------------------

    def _history(self, delivery: Delivery) -> None:
        state = delivery.state
        while state.chunks_done < len(state.chunks) and not self._stop.is_set():
            number = state.chunks_done
            # A stream that was lost may have ended inside a transaction: so may chunks begin.
            bounds = bounds_of(state.position, state.chunks, number)
            frame = self._frames.between(state.version, *bounds)
            census = census_of_log(self._log, Between(*bounds))
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
        after = state.boundary  # of this stream: without a history it moves with the position
        frame = self._frames.stream(start, after, self._settings.batch)
        failed: list[BaseException] = []

        def deliver(batch: DataFrame, number: int) -> None:
            try:
                with self._exclusively():
                    census = stream_census(self._file, self._log.changes, number, after)
                    delivery.deliver(batch, "stream", number, census)
                    delivery.done(self._file.needed_version(state))
            except BaseException as error:
                failed.append(error)
                raise _BatchFailed from None

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
