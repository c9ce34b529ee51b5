"""Delivering batches to a sink, and remembering how far that came."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from pgtide.capture.faults import fault
from pgtide.config.model import Pipeline
from pgtide.errors import LogError
from pgtide.log.reader import Log
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.pipeline import parking
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.completion import Completion
from pgtide.pipeline.escapes import escapes
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.relation_histories import Told
from pgtide.pipeline.state import Resuming, State, now
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.withheld import withheld
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.sinks import Kept, Scope, Sink
from pgtide.spark.few_tasks import in_few_tasks

logger = logging.getLogger(__name__)


@dataclass
class Delivery:
    """The way of one pipeline's batches into its sink; one at a time."""

    spark: SparkSession
    name: str
    settings: Pipeline
    storage: Storage
    file: StateFile
    state: State
    sink: Sink
    stop: threading.Event
    on_batch: Callable[[str, State], None] | None = None
    _shapes: dict[int, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._well = False  # whether this run has delivered anything
        self._log = Log(self.storage.root, self.storage.options)
        self._frames = LogFrames(self.spark, self.storage)

    def deliver(
        self, frame: DataFrame, phase: str, number: int, census: Census | None = None
    ) -> None:
        """Deliver a batch; ``done`` remembers it. ``census``: if it has been taken already."""
        began = time.monotonic()
        batch = self._batch(frame, Scope(self.name), census)
        if batch is None:
            return
        if phase == "stream":
            self._refuse_disorder(batch.census, number)
        batch = replace(batch, parked=frozenset(self.state.parked))
        parking.spread(self.state, batch)
        parked = dict(self.state.parked)
        batch = replace(batch, parked=frozenset(parked), lacking=parked)
        for failure in self._write(batch):
            low = failure.position or batch.census.low
            parking.park(self.name, self.state, failure, low)
        delivered = replace(batch, parked=frozenset(self.state.parked))
        self._count(delivered, time.monotonic() - began)
        self.state.applied = self.sink.reached(Scope(self.name))
        if phase == "stream":
            self.state.stream_batch = number

    def _refuse_disorder(self, census: Census, number: int) -> None:
        """Stop when a new batch begins before what was delivered: sinks would pass over it.

        Delta's stream takes the files of a commit as the commit names them.
        """
        last = self.state.stream_batch
        if 0 <= last < number and census.low < self.state.position:
            raise LogError(
                "rows of the log came out of order",
                detail=f"A batch begins at {census.low}, {self.state.position} was reached before.",
                hint=f"Build the target anew: pgtide replay --pipeline {self.name}",
            )

    def _batch(self, frame: DataFrame, scope: Scope, census: Census | None = None) -> Batch | None:
        """The rows with what they do, None when there are none."""
        if census is None:
            # How many there are is not known before: most often about as many as last time.
            census = take_census(in_few_tasks(frame, self.state.batch_rows or None))
        if census.high is None:
            return None
        self._know(census)
        return Batch(
            spark=self.spark,
            frame=in_few_tasks(frame, census.rows),
            shapes=self._shapes,
            census=census,
            scope=scope,
            settings=self.settings,
            source=self._source(census),
            earlier=self._earlier(census),
            completion=Completion(self.storage),
        )

    def _source(self, census: Census) -> LogSource:
        """The log's source; where rows were read, with what it says about snapshots now."""
        read = any(count.op == "read" for count in census.counts)
        return self._log.snapshot().source if read else self._log.source

    def _know(self, census: Census) -> None:
        """See that every shape is known that the batch speaks of, be it without rows as yet."""
        used = {count.shape for count in census.counts if count.shape is not None}
        if not used <= self._shapes.keys() or any(mark.op == "ddl" for mark in census.marks):
            self._shapes = self._log.shapes()

    def _earlier(self, census: Census) -> tuple[Told, ...]:
        """What the commands of a transaction told that goes on in this batch; a job if it has."""
        tables = census.interrupted
        if not tables:
            return ()
        # Any version will do: rows before a position never change.
        version = self._log.snapshot().version
        return tuple(self._frames.told_before(version, census.low, tables))

    def _write(self, batch: Batch) -> list[Failure]:
        """Hand a batch to the sink; failures of tables that may be parked."""
        escaped = escapes(batch)
        parking.refuse(self.settings, escaped)
        if escaped and batch.only is not None:  # those that catch up are parked again together
            return escaped
        failures = self.sink.write(parking.without(batch, escaped))
        fault("pipeline.written")
        parking.refuse(self.settings, failures)
        return [*escaped, *failures]

    def _count(self, batch: Batch, seconds: float) -> None:
        state, census, high = self.state, batch.census, batch.census.high
        assert high is not None, "a batch has rows"
        # After a whole transaction the log need not keep it for this reader.
        beyond = Position(Lsn(high.lsn + 1)) if census.whole else high.next
        if not census.whole and self.sink.whole_transactions:
            beyond = Position(high.lsn)
        state.position = beyond
        state.batches += 1
        state.rows += census.rows
        state.batch_at, state.batch_rows, state.batch_seconds = now(), census.rows, seconds
        state.committed_at = census.committed_at or state.committed_at
        self._count_tables(batch)

    def _count_tables(self, batch: Batch) -> None:
        for counts, found in (
            (self.state.table_rows, batch.table_rows()),
            (self.state.withheld, withheld(batch)),
            (self.state.withheld, batch.passed_over),
            (self.state.skipped_writes, batch.skipped_writes),
        ):
            for name, rows in found.items():
                counts[name] = counts.get(name, 0) + rows

    def done(self, version: int) -> None:
        """Remember what was delivered; the log is still needed from that version on."""
        self.file.save(self.state)
        fault("pipeline.saved")
        parking.register(self.storage, self.name, self.state, version)
        if not self._well:
            self.file.clear_error()
            self._well = True
        if self.on_batch is not None:
            self.on_batch(self.name, self.state)

    def keep(self) -> None:
        """Have the target know what the state says of tables, if it needs that."""
        state = self.state
        known = self.sink.kept(self.name)
        wanted = Kept(state.tables, state.parked, state.left)
        if known is not None and not _same(known, wanted):
            self.sink.keep(self.name, wanted)

    # -- parked tables --------------------------------------------------------------

    def resume(self) -> None:
        """Take up parked tables that were asked for, or were on their way when a run ended."""
        if self.state.resuming is not None:
            self._catch_up()
        requests = self.file.requests()
        for tables in parking.wanted_groups(self.state, requests):
            if self.stop.is_set():
                return
            snapshot = self._log.snapshot()
            start = self.state.parked[tables[0]].position
            cuts = self._frames.cuts(snapshot, start, self.settings.batch)
            self.state.resuming = parking.plan(self.state, tables, cuts, self._until())
            self.file.save(self.state)
            self._catch_up()
        for request in requests:
            self.file.answered(request)

    def _until(self) -> Position:
        """Where all others are. A target may be ahead of the state, and takes nothing twice:

        what a parked table missed of that does not come by again.
        """
        reached = self.sink.reached(Scope(self.name))
        return self.state.position if reached is None else max(self.state.position, reached.next)

    def _catch_up(self) -> None:
        state, resuming = self.state, self.state.resuming
        assert resuming is not None
        while resuming.chunks_done < len(resuming.chunks):
            if self.stop.is_set():
                return
            batch = self._missed(resuming)
            failures = [] if batch is None else self._write(batch)
            if batch is not None and failures:
                low = failures[0].position or batch.census.low
                parking.park(self.name, state, failures[0], low, resuming.tables)
                parking.advance(state, resuming.tables, self.sink.kept(self.name))
                break
            if batch is not None:
                self._count_tables(batch)
            resuming.chunks_done += 1
            self.file.save(state)
        else:
            for table in resuming.tables:
                del state.parked[table]
            self.keep()
            logger.info("pipeline %s resumed %s", self.name, ", ".join(resuming.tables))
        state.end_resuming()
        self.done(self.file.needed_version(self.state))

    def _missed(self, resuming: Resuming) -> Batch | None:
        """The next part of what parked tables missed, None when it holds nothing."""
        self._shapes = self._log.shapes()
        frame = parking.missed_rows(self._frames, self._log.snapshot(), self._shapes, resuming)
        batch = self._batch(frame, Scope(self.name, self.state.resumption))
        if batch is None:
            return None
        whole = resuming.start == Position(Lsn(0))
        return replace(batch, only=frozenset(resuming.tables), from_start=whole)


def _same(known: Kept, wanted: Kept) -> bool:
    """Whether two say the same; of a parked table the target may know more."""
    sides = [(kept.tables, kept.parked.keys(), kept.left.keys()) for kept in (known, wanted)]
    return sides[0] == sides[1]
