"""The stdout sink: events on standard output, one per line, in order across all tables.

At least once: a batch that was interrupted is printed again from its beginning. A reader
that leaves, as ``| head`` does, ends the pipeline without an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain

from pyspark.sql import SparkSession

from pgtide.config.sinks import StdoutSettings
from pgtide.errors import TargetClosed, TransientError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure, Writers
from pgtide.pipeline.parking import refuse
from pgtide.pipeline.steps import TableWork
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.sinks import Kept, Scope
from pgtide.sinks.chunks import Chunk, LineMaker, ordered_chunks
from pgtide.sinks.events import all_events
from pgtide.spark.failures import as_pgtide_error
from pgtide.standard_output import stdout_may_close


class StdoutSink:
    """Prints the events of batches."""

    whole_transactions = False

    def __init__(self, settings: StdoutSettings) -> None:
        self._settings = settings

    def write(self, batch: Batch) -> list[Failure]:
        failures: list[Failure] = []
        try:
            chunks = self._chunks(batch)
            first = next(chunks, None)
        except Exception as error:
            if isinstance(as_pgtide_error(error, "making events"), TransientError):
                raise
            # All lines are made before the first is here: nothing has been printed.
            failures = self._failing(batch)
            if not failures:
                raise
            refuse(batch.settings, failures)
            gone = {".".join(table) for failure in failures for table in failure.work.tables}
            chunks = self._chunks(replace(batch, parked=batch.parked | gone))
            first = next(chunks, None)
        self._print(chunks if first is None else chain([first], chunks))
        return failures

    def _failing(self, batch: Batch) -> list[Failure]:
        """The tables of which no lines can be made, found by making each one's."""

        def attempt(session: SparkSession, work: TableWork) -> None:
            names = frozenset(".".join(table) for table in work.tables)
            next(self._chunks(replace(batch, only=names)), None)

        writers = Writers(batch.spark, threads=1)
        try:
            return writers.run(batch.work, attempt)
        finally:
            writers.close()

    def _print(self, chunks: Iterable[Chunk]) -> None:
        printed = False
        with stdout_may_close():
            for chunk in chunks:
                sys.stdout.buffer.write(chunk.data)
            sys.stdout.flush()
            printed = True
        if not printed:
            raise TargetClosed("nobody reads standard output any more")

    def reached(self, scope: Scope, table: TableRules | None = None) -> None:
        """Nobody knows what was read."""

    def kept(self, pipeline: str) -> None:
        """Nothing else."""

    def keep(self, pipeline: str, kept: Kept) -> None:
        """It is not needed."""

    def leave(self, pipeline: str, table: TableRules, position: Position) -> None:
        """Nor is this."""

    def close(self) -> None:
        """There is nothing to let go of."""

    def _chunks(self, batch: Batch) -> Iterator[Chunk]:
        events = all_events(batch)
        now = datetime.now(UTC)
        maker = LineMaker(events.shapes, self._settings.envelope, batch.source, now)
        return ordered_chunks(events.frame, maker, events.most, batch.census.rows)
