"""One unit of a batch as one transaction of the target: rows and commands in order, progress.

The quick way is one row per key, table by table. If rows of the target are not as expected, or a
constraint does not hold in that order, the transaction is undone and the unit is done again in the
source's own order, event by event; and once more if a foreign key did not hold. Where the units
before needed that order it is tried first (``order``).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg

from pgtide.config.sinks import PostgresSettings
from pgtide.log.reader import Log
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.steps import Swept
from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.after_rows import run_after_rows
from pgtide.sinks.postgres.applying import Applier, Unexpected
from pgtide.sinks.postgres.bookkeeping import expect_progress, lock_progress, write_progress
from pgtide.sinks.postgres.deferred import WaitsForRows, settle
from pgtide.sinks.postgres.emptying import truncate
from pgtide.sinks.postgres.failures import TableRefused, is_of_a_row, target_error
from pgtide.sinks.postgres.initial_load import InitialLoad
from pgtide.sinks.postgres.keeping import note_tables
from pgtide.sinks.postgres.late_keys import FOREIGN_KEY
from pgtide.sinks.postgres.loading import close_load
from pgtide.sinks.postgres.ordered import OrderedApplier
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.sinks.postgres.stager import Copied, Stager
from pgtide.sinks.postgres.statements import Chosen
from pgtide.sinks.postgres.sweeping import StagedSweep, staged_sweeps
from pgtide.sinks.postgres.target_tables import missing_table, read_tables
from pgtide.sinks.postgres.units import Command, Left, RowsOf, SweepOf, Truncate, Unit
from pgtide.spark.layout import Layout, TableName

# A hash of a batch's keys fits into this; in less, both sides of the join go through the disk.
_MEMORY = """
SELECT set_config('work_mem', '64MB', true)
WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('64MB')
"""

SMALL_TABLE_BYTES = 1024 * 1024  # looked through in about a millisecond


class TargetTransaction:
    """Brings one unit into the target."""

    def __init__(
        self,
        connection: SqlConnection,
        settings: PostgresSettings,
        unit: Unit,
        frames: LogFrames,
        log: Log,
        scope: str,
    ) -> None:
        """``scope``: whose progress it is, the pipeline's or that of some tables of it."""
        self._connection = connection
        self._settings = settings
        self._unit = unit
        self._batch = unit.batch
        url = settings.url.reveal()
        self._stager = Stager(connection, url, unit, scope, frames, log)
        self._scope = scope
        self._sweeps = self._staged_sweeps()
        self._load = InitialLoad(connection, settings, unit, log, scope)
        self._ranges: list[int] | None = None  # of keys, if not all

    def run(self, reached: Position, *, in_order: bool = False) -> bool:
        """Apply the unit to a target that is at ``reached``; whether that went in order only.

        ``in_order``: that is tried first.
        """
        if in_order and self._finds_rows() and self._went_in_order(reached):
            return True
        try:
            self._attempt(reached, every=False)
            return False
        except Unexpected:
            pass
        except psycopg.Error as error:
            if not is_of_a_row(error) and not isinstance(error, psycopg.errors.ObjectInUse):
                raise
        self._in_source_order(reached)
        return True

    def _finds_rows(self) -> bool:
        """Whether no event has to look for its row for long: by an index, or in a small table."""
        tables = [table for table in self._unit.tables if not table.once]
        known = read_tables(self._connection, [table.rules.target for table in tables])
        looked_through = []
        for rows in tables:
            table = known.get(rows.rules.target)  # none yet: a command of the unit makes it
            if table is not None and not table.is_unique(rows.layout.key_names):
                looked_through.append(table)
        sizes = "SELECT sum(pg_relation_size(t)) FROM unnest(%s::oid[]) t"
        size = self._connection.execute(sizes, [[t.oid for t in looked_through]]).fetchone()
        small = size is not None and (size[0] or 0) < SMALL_TABLE_BYTES
        return small and not any(table.partitioned for table in looked_through)

    def _went_in_order(self, reached: Position) -> bool:
        try:
            self._in_order(reached)
        except (TableRefused, psycopg.errors.ObjectInUse):
            return False  # sets may do, as where rows of one statement refer to each other
        return True

    def _in_source_order(self, reached: Position) -> None:
        """One by one; rows of one statement may refer to those behind them."""
        try:
            self._in_order(reached)
        except TableRefused as refused:
            if refused.state != FOREIGN_KEY:
                raise
            try:
                self._in_order(reached, late=True)
            except psycopg.errors.ObjectInUse:  # what it has to look at keeps it from being altered
                raise refused from None

    def _in_order(self, reached: Position, *, late: bool = False) -> None:
        """What is refused even then, its key is known but for triggers."""
        try:
            self._attempt(reached, every=True, late=late)
        except psycopg.Error as error:
            schema, table = error.diag.schema_name, error.diag.table_name
            if not is_of_a_row(error) or schema is None or table is None:
                raise
            told = target_error(error, "changes are applied")
            raise TableRefused((schema, table), told) from error

    def _attempt(self, reached: Position, *, every: bool, late: bool = False) -> None:
        loaded = self._load.run(reached)
        tables = [table for table in self._unit.tables if table not in loaded]
        last = [] if every else self._stager.added_last(tables)
        rows = self._rows([table for table in tables if table not in last], every=every)
        added = self._rows(last)
        sweeps = [sweep for sweeps in self._sweeps.values() for sweep in sweeps]
        self._stager.prepare([rows, added], sweeps)
        copied = self._stager.stage(rows, sweeps)
        chosen = Chosen(copied.loads, self._ranges)
        given = (self._connection, self._batch, rows, chosen, self._settings)
        applier = OrderedApplier(*given, late=late) if every else Applier(*given)
        with ThreadPoolExecutor(1, "pgtide-stage") as beside, self._connection.transaction():
            staged = beside.submit(self._stager.copy, added)
            self._begin(reached)
            copied.expect(self._connection)
            for action in self._unit.actions:
                match action:
                    case RowsOf():
                        applier.apply(action.segment)
                    case SweepOf():
                        for sweep in self._sweeps[action.step]:
                            if not self._swept_before(sweep):
                                sweep.run(self._connection, chosen)
                    case Left(at, partition, root):
                        self._unit.commands.leave(self._connection, at, partition, root)
                    case _:
                        self._change(action, applier)
            self._add(added, staged.result())
            self._end()
        for table, count in applier.passed_over.items():
            self._batch.pass_over(table, count)

    def _rows(self, tables: Sequence[TableRows], *, every: bool = False) -> StagedRows:
        return StagedRows(self._scope, tables, self._unit.cuts, every)

    def _add(self, rows: StagedRows, copied: Copied) -> None:
        """Bring in rows that were staged while others were applied."""
        copied.expect(self._connection)
        if copied.rows:
            chosen = Chosen(copied.loads, self._ranges)
            Applier(self._connection, self._batch, rows, chosen, self._settings).apply(0)

    @property
    def _source(self) -> str:
        return "/".join(self._batch.source.identity.values())

    @property
    def _pipeline(self) -> str:
        return self._batch.scope.pipeline

    def _staged_sweeps(self) -> dict[Swept, list[StagedSweep]]:
        found: dict[Swept, list[StagedSweep]] = {}
        number = 1
        for action in self._unit.actions:
            if isinstance(action, SweepOf):
                sweeps = staged_sweeps(action.step, number, self._scope, self._batch)
                found[action.step] = sweeps
                number += len(sweeps)
        return found

    def _swept_before(self, sweep: StagedSweep) -> bool:
        """Whether a table was empty where a snapshot begins, and by now has its rows.

        A sweep that spares nothing stands before them in the log, and they are loaded earlier.
        """
        return sweep.stage is None and sweep.table in self._load.targets

    def _begin(self, reached: Position) -> None:
        """Make sure that nobody else has brought the target further meanwhile."""
        self._expect(lock_progress(self._connection, self._scope, self._source), reached)
        self._set_up(self._connection)

    def _expect(self, found: Position, reached: Position) -> None:
        expect_progress(self._pipeline, found, reached)

    def _set_up(self, connection: SqlConnection) -> None:
        """Settings of a transaction that writes rows."""
        if self._settings.replication_role == "replica":
            connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute(_MEMORY)

    def _change(self, action: Truncate | Command, applier: Applier) -> None:
        """Do something to tables as such."""
        try:
            if isinstance(action, Truncate):
                self._truncate(action)
            else:
                self._unit.commands.run(self._connection, action.at)
                applier.look_again()
        except WaitsForRows as waiting:
            applier.check()
            raise waiting.error from waiting

    def _truncate(self, action: Truncate) -> None:
        known = read_tables(self._connection, action.tables)
        for name in action.tables:
            if name not in known:
                raise missing_table(name, self._pipeline)
        settle(self._connection)
        if self._batch.only is not None:  # tables that refer to it need not be empty yet
            for name in action.tables:
                self._connection.execute(f"DELETE FROM {known[name].rows}".encode())
            return
        tables = [known[name] for name in action.tables]
        truncate(self._connection, tables, restart=action.restart_identity)

    def _end(self) -> None:
        """Say how far the target is; behind a snapshot make what was to wait for its rows."""
        whole = self._batch.census.whole and self._scope == self._pipeline
        if whole and self._unit.high.lsn >= self._batch.source.snapshot - 1:
            parked = self._parked()
            close_load(self._connection, self._pipeline, parked)
            run_after_rows(self._connection, self._pipeline, parked=bool(parked))
        note_tables(self._connection, self._scope, self._batch, self._unit.high)
        write_progress(self._connection, self._scope, self._unit.high, self._source)

    def _parked(self) -> set[TableName]:
        """What tables that wait are called in the target."""
        shapes, parked = self._batch.shapes, self._batch.parked
        tables = {Layout.of(shape, shapes).table for shape in shapes.values()} if parked else set()
        return {self._batch.rules(t).target for t in tables if ".".join(t) in parked}
