"""Tables of a unit side by side, each in a transaction and with a progress of its own.

For ``consistency: table``. Commands concern them all, so a unit with commands is one transaction
as ever. A table that is ahead of the others after a crash leaves out what it has.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from pgtide.config.sinks import PostgresSettings
from pgtide.log.reader import Log
from pgtide.pipeline.batch import at_or_after
from pgtide.pipeline.census import take_census
from pgtide.pipeline.reading import LogFrames
from pgtide.sinks.postgres.bookkeeping import read_progress, table_scope
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.transaction import TargetTransaction
from pgtide.sinks.postgres.units import Unit, unit_of

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
        batch = replace(unit.batch, only=unit.parts[name])
        with closing(connect_target(self.settings.url.reveal())) as connection:
            reached = read_progress(connection, own)
            if reached >= unit.high:
                return
            if reached >= batch.census.low:
                frame = batch.frame.filter(at_or_after(reached.next))
                batch = replace(batch, frame=frame, census=take_census(frame))
            part = unit_of(batch, unit.commands)
            TargetTransaction(connection, self.settings, part, self.frames, self.log, own).run(
                reached
            )
