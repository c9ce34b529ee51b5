"""Tables of a unit side by side, each in a transaction and with a progress of its own.

For ``consistency: table``. Commands concern them all, so a unit with commands is one transaction
as ever. A table that is ahead of the others after a crash leaves out what it has. Many rows of one
table are parted in turn (``key_ranges``).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from pgtide.config.sinks import PostgresSettings
from pgtide.log.reader import Log
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import take_census
from pgtide.pipeline.reading import LogFrames
from pgtide.position import Position
from pgtide.sinks.postgres.bookkeeping import read_progress, table_scope
from pgtide.sinks.postgres.key_ranges import RangedTransaction, read_ranges
from pgtide.sinks.postgres.parts import counted
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.units import Unit, unit_of
from pgtide.spark.positions import at_or_after, at_or_before

THREADS = max(2, min(8, os.cpu_count() or 2))


@dataclass(frozen=True)
class SideBySide:
    """Applies the tables of units."""

    settings: PostgresSettings
    frames: LogFrames
    log: Log

    def run(self, unit: Unit, scope: str) -> None:
        """Bring all rows of a unit into their tables; the first failure, when all have ended."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="pgtide-replica") as pool:
            done = [pool.submit(self._one, unit, name, scope) for name in unit.parts]
        for future in done:
            future.result()

    def _one(self, unit: Unit, name: str, scope: str) -> None:
        own = table_scope(scope, name)
        pipeline = unit.batch.scope.pipeline
        batch = replace(unit.batch, only=unit.parts[name])
        with closing(connect_target(self.settings.url.reveal())) as connection:
            reached = read_progress(connection, own)
            ahead = read_ranges(connection, pipeline, name)
            inside = {at for at in ahead.values() if reached < at < unit.high}
            for end in sorted({*inside, unit.high}):  # no range ends inside of a part
                part = self._between(batch, reached, end)
                if part is None:
                    continue
                mine = unit_of(part, unit.commands)
                RangedTransaction(
                    connection, self.settings, mine, self.frames, self.log, own, name, ahead
                ).run(reached)
                reached = mine.high

    def _between(self, batch: Batch, reached: Position, end: Position) -> Batch | None:
        """What a batch has behind a position up to another; None if that is nothing."""
        low, high = batch.census.low, batch.census.high
        if high is None or reached >= end:
            return None
        frame = batch.frame
        if reached >= low:
            frame = frame.filter(at_or_after(reached.next))
        if end < high:
            frame = frame.filter(at_or_before(end))
        if frame is batch.frame:
            return batch
        return counted(batch, frame, take_census(frame))
