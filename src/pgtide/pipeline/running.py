"""A pipeline: reads the log, hands batches to its sink, remembers how far it has come."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pgtide.config.model import Config
from pgtide.errors import TransientError
from pgtide.log.reader import Log
from pgtide.log.readers import update_reader
from pgtide.log.storage import Storage
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.state import Parked, State, StateFile, now
from pgtide.position import Lsn, Position
from pgtide.sinks import Mark, Sink
from pgtide.sinks.opening import open_sink
from pgtide.spark.failures import as_pgtide_error
from pgtide.spark.paths import spark_path

logger = logging.getLogger(__name__)

POLL_S = 0.2


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
    ) -> None:
        self._spark = spark
        self._settings = config.pipelines[name]
        self._name = name
        self._stop = stop or threading.Event()
        self._on_batch = on_batch
        self._storage = Storage(config.log.path, config.log.storage)
        self._log = Log(config.log.path, config.log.storage)
        self._frames = LogFrames(spark, self._storage)
        self._file = StateFile(self._storage, name)
        self._sink: Sink | None = None
        self._shapes = self._log.shapes()
        self.state = self._file.load() or self._begin()

    # -- the run ------------------------------------------------------------------

    def run(self, *, until_current: bool = False) -> None:
        """Deliver what the log holds, then what comes, or only what is there now."""
        self._sink = open_sink(self._settings, self._spark)
        try:
            self._history()
            if not self._stop.is_set():
                self._stream(until_current)
        finally:
            self._sink.close()

    def _begin(self) -> State:
        """Register before anything is read: from here on nothing is cleaned away."""
        snapshot = self._log.snapshot()
        start = Position(snapshot.complete_from)
        self._register(snapshot.version, start)
        cuts = self._frames.cuts(snapshot, start.lsn, self._settings.batch)
        state = State.new(snapshot.version, start, cuts)
        self._file.save(state)
        return state

    def _register(self, version: int, position: Position) -> None:
        update_reader(self._storage, reader_name(self._name), version, position)

    def _history(self) -> None:
        state = self.state
        while state.chunks_done < len(state.chunks) and not self._stop.is_set():
            number = state.chunks_done
            after = state.chunks[number - 1] if number else Lsn(max(state.position.lsn - 1, 0))
            frame = self._frames.between(state.version, after, state.chunks[number])
            self._deliver(frame, self._mark("history", number))
            state.chunks_done += 1
            self._done(state.version)

    def _stream(self, until_current: bool) -> None:
        started = self._file.last_offset() is not None
        start = None if started else self.state.version
        frame = self._frames.stream(start, self.state.boundary, self._settings.batch)
        failed: list[BaseException] = []

        def deliver(batch: DataFrame, number: int) -> None:
            try:
                self._deliver(batch, self._mark("stream", number))
                self._done(self._reached())
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
            while query.isActive and not self._stop.is_set():
                self._stop.wait(POLL_S)
        finally:
            query.stop()
        error = failed[0] if failed else query.exception()
        if error is not None and not self._stop.is_set():
            raise as_pgtide_error(error, self._doing) from error

    @property
    def _doing(self) -> str:
        return f"running pipeline {self._name}"

    def _reached(self) -> int:
        """The version of the log that the stream needs no more."""
        offset = self._file.last_offset()
        return max(int(offset["reservoirVersion"]) - 1, 0) if offset else self.state.version

    # -- a batch --------------------------------------------------------------------

    def _mark(self, phase: str, number: int) -> Mark:
        return Mark(self._name, self.state.incarnation, phase, number)

    def _deliver(self, frame: DataFrame, mark: Mark) -> None:
        began = time.monotonic()
        census = take_census(frame)
        if census.high is None:
            return
        self._know({count.shape for count in census.counts})
        batch = Batch(self._spark, frame, self._shapes, census, mark, self._settings)
        batch = replace(batch, parked=frozenset(self.state.parked))
        assert self._sink is not None, "run() opened it"
        self._park(self._sink.write(batch))
        self._count(batch, census, time.monotonic() - began)

    def _know(self, shapes: set[int | None]) -> None:
        if not {shape for shape in shapes if shape is not None} <= self._shapes.keys():
            self._shapes = self._log.shapes()

    def _park(self, failures: list[Failure]) -> None:
        """Set failed tables aside if the pipeline may; otherwise the first failure ends it."""
        for failure in failures:
            if self._settings.on_error == "stop" or isinstance(failure.error, TransientError):
                raise failure.error
        for failure in failures:
            error = failure.error
            parked = Parked(failure.work.low, error.message, error.detail, error.hint, now())
            for schema, table in failure.work.tables:
                self.state.parked[f"{schema}.{table}"] = parked
            logger.error("pipeline %s parked %s: %s", self._name, failure.work.name, error.message)

    def _count(self, batch: Batch, census: Census, seconds: float) -> None:
        state = self.state
        assert census.high is not None
        state.position = Position(census.high.lsn, census.high.seq + 1)
        state.batches += 1
        state.rows += census.rows
        state.batch_at, state.batch_rows, state.batch_seconds = now(), census.rows, seconds
        state.committed_at = census.committed_at or state.committed_at
        for name, rows in batch.table_rows().items():
            state.table_rows[name] = state.table_rows.get(name, 0) + rows

    def _done(self, version: int) -> None:
        self._file.save(self.state)
        self._register(version, self.state.position)
        if self._on_batch is not None:
            self._on_batch(self._name, self.state)


def reader_name(pipeline: str) -> str:
    """The name under which a pipeline is registered as a reader of the log."""
    return f"pipeline.{pipeline}"
