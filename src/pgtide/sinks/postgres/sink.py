"""The Postgres sink: each batch in one transaction of the target, with how far it has come.

The target's own ``pgtide.progress`` says what it has. A batch, or part of one, that is there
already is left out; a source transaction of which the batch has only a part is held back until
the rest comes, and then read from the log as a whole. So the target is always as the source was
between two transactions, whatever was killed when.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import psycopg
from pyspark.sql import SparkSession

from pgtide.config.sinks import PostgresSettings
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.pipeline.batch import Batch, at_or_after, at_or_before
from pgtide.pipeline.census import take_census
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.reading import LogFrames
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.bookkeeping import prepare, read_progress
from pgtide.sinks.postgres.commands import Commands, read_left_out
from pgtide.sinks.postgres.failures import target_error
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.transaction import TargetTransaction
from pgtide.sinks.postgres.units import units_of


class PostgresSink:
    """Writes batches into another database."""

    def __init__(self, settings: PostgresSettings, spark: SparkSession, log: Storage) -> None:
        self._settings = settings
        self._log = Log(log.root, log.options)
        self._frames = LogFrames(spark, log)
        self._connection: SqlConnection | None = None
        self._reached: Position | None = None  # None: not known to this run
        self._held = False  # whether rows behind that were held back

    def write(self, batch: Batch) -> list[Failure]:
        """Apply what the target does not have, up to the last transaction that is complete."""
        try:
            self._write(batch)
        except psycopg.Error as error:
            self.close()
            raise target_error(error, "changes are applied") from error
        except BaseException:
            self.close()
            raise
        return []

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = self._reached = None

    def _write(self, batch: Batch) -> None:
        connection = self._open(batch)
        assert self._reached is not None, "opening has read it"
        wanted = self._complete(batch, self._reached)
        if wanted is None:
            return
        left_out: frozenset[Position] = frozenset()
        if any(mark.op == "ddl" for mark in wanted.census.marks):
            left_out = read_left_out(connection, batch.mark.pipeline)
        commands = Commands(self._settings, wanted, left_out)
        for unit in units_of(wanted, commands):
            target = TargetTransaction(connection, self._settings, unit, self._frames, self._log)
            target.run(self._reached)
            self._reached = unit.high

    def _open(self, batch: Batch) -> SqlConnection:
        if self._connection is None:
            self._connection = connect_target(self._settings.url.reveal())
            prepare(self._connection)
            self._held = True  # whatever an earlier run held back is read again
        if self._reached is None:
            self._reached = read_progress(self._connection, batch.mark.pipeline)
        return self._connection

    # -- which rows -------------------------------------------------------------------------

    def _complete(self, batch: Batch, reached: Position) -> Batch | None:
        """The batch without what the target has and without a transaction that goes on.

        With what was held back of one that began before.
        """
        low, high = batch.census.low, batch.census.high
        assert high is not None, "a batch has rows"
        last = high if self._ends(batch) else Position.end_of(Lsn(high.lsn - 1))
        frame, changed = batch.frame, False
        if self._held and low.seq > 0 and reached < low:
            first = max(reached.next, Position(low.lsn))
            version = self._log.snapshot().version
            earlier = self._frames.between(version, first, Position(low.lsn, low.seq - 1))
            frame, changed = frame.unionByName(earlier.select(*frame.columns)), True
        if reached >= low:
            frame, changed = frame.filter(at_or_after(reached.next)), True
        if last < high:
            frame, changed = frame.filter(at_or_before(last)), True
        self._held = last < high
        if not changed:
            return batch
        census = take_census(frame)
        return None if census.high is None else replace(batch, frame=frame, census=census)

    def _ends(self, batch: Batch) -> bool:
        """Whether the last transaction of a batch may be applied as far as it is there.

        An initial snapshot is one LSN whatever its size: it is no transaction of the source.
        """
        high = batch.census.high
        return batch.census.whole or (high is not None and high.lsn == batch.source.snapshot - 1)
