"""The Postgres sink: each batch in one transaction of the target, with how far it has come.

The target's own ``pgtide.progress`` says what it has. A batch, or part of one, that is there
already is left out; a source transaction of which the batch has only a part is held back until
the rest comes, and then read from the log as a whole. So the target is always as the source was
between two transactions, whatever was killed when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from pyspark.sql import SparkSession

from pgtide.config.sinks import PostgresSettings
from pgtide.errors import TargetError
from pgtide.log.reader import Log
from pgtide.log.storage import Storage
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.file_census import Between
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.parking import without
from pgtide.pipeline.reading import LogFrames
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.rules import TableRules
from pgtide.sinks import Kept, Scope
from pgtide.sinks.postgres.bookkeeping import prepare, read_progress, table_scope, tables_ahead
from pgtide.sinks.postgres.commands import Commands, read_left_out
from pgtide.sinks.postgres.failures import TableRefused, target_error
from pgtide.sinks.postgres.history_tables import refuse_histories
from pgtide.sinks.postgres.keeping import is_as_it_left, note_left, read_kept, write_kept
from pgtide.sinks.postgres.key_ranges import ranges_ahead
from pgtide.sinks.postgres.order import Order
from pgtide.sinks.postgres.parts import part_of
from pgtide.sinks.postgres.selected_later import refuse_rows
from pgtide.sinks.postgres.session import connect_target, refuse_source
from pgtide.sinks.postgres.side_by_side import SideBySide
from pgtide.sinks.postgres.target_tables import read_tables
from pgtide.sinks.postgres.transaction import TargetTransaction
from pgtide.sinks.postgres.units import Unit, units_of
from pgtide.spark.positions import at_or_after, at_or_before

SAY_EVERY_S = 10.0  # how far a batch is that takes long

logger = logging.getLogger(__name__)


class PostgresSink:
    """Writes batches into another database."""

    whole_transactions = True

    def __init__(self, settings: PostgresSettings, spark: SparkSession, log: Storage) -> None:
        self._settings = settings
        self._log = Log(log.root, log.options)
        self._frames = LogFrames(spark, log)
        self._connection: SqlConnection | None = None
        self._reached: dict[str, Position] = {}  # by scope, as far as this run knows
        self._order = Order()
        self._held = False  # whether rows behind that were held back
        self._from: Position | None = None  # where what is being applied begins

    def write(self, batch: Batch) -> list[Failure]:
        """Apply what the target does not have; the tables that it refuses, if they may wait."""
        failures: list[Failure] = []
        while True:
            try:
                self._write(batch)
            except TableRefused as refused:
                self.close()
                failure = self._failure(batch, refused)
                if batch.settings.on_error == "stop" or failure is None:
                    raise refused.error from refused
                failures.append(failure)
                if batch.only is not None:  # those that catch up are parked again together
                    return failures
                batch = without(batch, [failure])
            except psycopg.Error as error:
                self.close()
                raise target_error(error, "changes are applied") from error
            except BaseException:
                self.close()
                raise
            else:
                return failures

    def _failure(self, batch: Batch, refused: TableRefused) -> Failure | None:
        for work in batch.work:
            targets = {batch.rules(table).target for table in work.tables}
            if refused.table in targets:
                return Failure(work, refused.error, self._from)
        return None

    def kept(self, pipeline: str) -> Kept:
        with self._asked("the target is asked which tables it has"):
            return read_kept(self._open(), pipeline)

    def keep(self, pipeline: str, kept: Kept) -> None:
        with self._asked("the target is told which tables it has"):
            write_kept(self._open(), pipeline, kept)

    def leave(self, pipeline: str, table: TableRules, position: Position) -> None:
        with self._asked("the target is told which tables it has"):
            note_left(self._open(), pipeline, table, position)

    def reached(self, scope: Scope, table: TableRules | None = None) -> Position:
        """What the target's progress says; tables that are written apart have one of their own."""
        with self._asked("the target is asked how far it is"):
            connection = self._open()
            if table is None:
                return read_progress(connection, scope.name)
            there = read_tables(connection, [table.target])
            if not there or not is_as_it_left(connection, scope.pipeline, table):
                return Position(Lsn(0))
            own = table_scope(scope.name, ".".join(table.source))
            return max(read_progress(connection, scope.name), read_progress(connection, own))

    @contextmanager
    def _asked(self, doing: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            raise target_error(error, doing) from error

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None
        self._reached.clear()

    def _write(self, batch: Batch) -> None:
        connection = self._open()
        scope = batch.scope.name
        if scope not in self._reached:
            self._refuse_mode(connection, batch)
            self._reached[scope] = read_progress(connection, scope)
        if batch.from_start and self._reached[scope] == Position(Lsn(0)):
            refuse_rows(connection, batch, scope)
        wanted = self._complete(batch, self._reached[scope])
        if wanted is not None:
            self._apply(wanted, connection, scope)

    def _apply(self, wanted: Batch, connection: SqlConnection, scope: str) -> None:
        """Bring whole transactions into the target, none of which it has."""
        left_out: frozenset[Position] = frozenset()
        if any(mark.op == "ddl" for mark in wanted.census.marks):
            left_out = read_left_out(connection, wanted.scope.pipeline)
        commands = Commands(self._settings, wanted, left_out)
        said_at = time.monotonic()
        for unit in units_of(wanted, commands, self._ahead(wanted, scope), self._log):
            self._from = unit.batch.census.low
            if self._apart(unit, scope):
                SideBySide(self._settings, self._frames, self._log).run(unit, scope)
                unit = unit.without_rows
            transaction = TargetTransaction(
                connection, self._settings, unit, self._frames, self._log, scope
            )
            self._order.run(transaction, unit.batch.census.rows, self._reached[scope])
            self._reached[scope] = unit.high
            if time.monotonic() - said_at > SAY_EVERY_S:
                said_at = time.monotonic()
                until = wanted.census.high
                logger.info("pipeline %s is at %s in a batch until %s", scope, unit.high, until)

    def _refuse_mode(self, connection: SqlConnection, batch: Batch) -> None:
        """Refuse a target that the pipeline has written in another mode, or that is the source."""
        if not batch.settings.routes:  # to other tables of the same database
            refuse_source(connection, batch.source)
        log = "/".join(batch.source.identity.values())
        refuse_histories(connection, batch.scope.pipeline, log)

    def _apart(self, unit: Unit, scope: str) -> bool:
        """Whether tables are written apart from each other: as set, or as was begun before."""
        if self._settings.consistency == "table":
            return bool(unit.parts)
        if not self._ahead(unit.batch, scope):
            return False
        if not unit.parts:
            raise TargetError(
                "some tables of the target are ahead of the others",
                detail="They were written side by side, and a command concerns them all.",
                hint="Set consistency to table until the pipeline is current.",
            )
        return True

    def _ahead(self, batch: Batch, scope: str) -> set[Lsn]:
        """Where tables are that a crash has left ahead of the pipeline, or a part of their keys."""
        connection = self._open()
        names = [".".join(table) for work in batch.work for table in work.tables]
        return tables_ahead(connection, scope) | ranges_ahead(
            connection, batch.scope.pipeline, names
        )

    def _open(self) -> SqlConnection:
        if self._connection is None:
            self._connection = connect_target(self._settings.url.reveal())
            prepare(self._connection)
            self._held = True  # whatever an earlier run held back is read again
        return self._connection

    # -- which rows -------------------------------------------------------------------------

    def _complete(self, batch: Batch, reached: Position) -> Batch | None:
        """The batch without what the target has and without a transaction that goes on.

        With what was held back of one that began before.
        """
        low, high = batch.census.low, batch.census.high
        assert high is not None, "a batch has rows"
        last = high if _ends(batch) else Position.end_of(Lsn(high.lsn - 1))
        frame, changed = batch.frame, False
        first = max(low, reached.next)
        if batch.only is None:
            if self._held and low.seq > 0 and reached < low:
                first = max(reached.next, Position(low.lsn))
                version = self._log.snapshot().version
                earlier = self._frames.between(version, first, Position(low.lsn, low.seq - 1))
                frame, changed = frame.unionByName(earlier.select(*frame.columns)), True
            self._held = last < high
        if reached >= low:
            frame, changed = frame.filter(at_or_after(reached.next)), True
        if last < high:
            frame, changed = frame.filter(at_or_before(last)), True
        if not changed:
            return batch
        return part_of(batch, frame, Between(first, last), self._log)


def _ends(batch: Batch) -> bool:
    """Whether the last transaction of a batch may be applied as far as it is there.

    An initial snapshot is one LSN whatever its size: it is no transaction of the source. Tables
    that catch up are not as the source was at any time before they have.
    """
    high = batch.census.high
    snapshot = high is not None and high.lsn == batch.source.snapshot - 1
    return batch.census.whole or snapshot or batch.only is not None
