"""Which tables of a unit are loaded: rows of a snapshot, into tables that were empty before them.

They go straight there, not through stages; ``loading`` has the tasks that copy them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pgtide.config.sinks import PostgresSettings
from pgtide.errors import TargetError
from pgtide.log.reader import Log
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.bookkeeping import expect_progress, read_progress
from pgtide.sinks.postgres.loading import Loader, load_rows, open_load
from pgtide.sinks.postgres.refused_lines import Destination
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.sinks.postgres.statements import Statements
from pgtide.sinks.postgres.target_tables import TargetTable, disable_triggers, read_tables
from pgtide.sinks.postgres.units import Unit
from pgtide.spark.layout import TableName
from pgtide.spark.log_slices import slices_of


class InitialLoad:
    """The load of one unit, done once however often the unit is attempted."""

    def __init__(
        self,
        connection: SqlConnection,
        settings: PostgresSettings,
        unit: Unit,
        log: Log,
        scope: str,
    ) -> None:
        """``scope``: whose progress it is."""
        self._connection = connection
        self._settings = settings
        self._unit = unit
        self._batch = unit.batch
        self._log = log
        self._scope = scope
        self._loaded: list[TableRows] | None = None

    @property
    def targets(self) -> set[TableName]:
        """The tables that have got rows so."""
        return {table.rules.target for table in self._loaded or ()}

    def refrain(self) -> None:
        """Load nothing: rows of this unit are on their way by ranges of keys already."""
        self._loaded = []

    def run(self, reached: Position) -> list[TableRows]:
        """Bring rows of a snapshot into tables that had none; the tables that this was done for.

        Of a target that is at ``reached``: where somebody else has brought it further, a table
        without rows may be one whose rows were deleted since.
        """
        lsn = Lsn(self._batch.source.snapshot - 1)
        census = self._batch.census
        if self._loaded is not None or not census.low.lsn == self._unit.high.lsn == lsn:
            return self._loaded or []
        wanted = {t.rules.target: t for t in self._unit.tables if t.once and not t.ruled}
        known = {
            name: table
            for name, table in read_tables(self._connection, wanted).items()
            if not table.refers and not any(c.generated for c in table.columns.values())
        }
        pipeline = self._batch.scope.pipeline
        with self._connection.transaction():
            found = read_progress(self._connection, self._scope, "FOR SHARE")
            expect_progress(pipeline, found, reached)
            epoch, open_ = open_load(self._connection, pipeline, lsn, list(known))
        self._refuse_other_way(open_ - known.keys())
        tables = [wanted[name] for name in known if name in open_]
        if tables:
            self._load(tables, known, lsn, epoch)
        self._loaded = tables  # not before: a unit that was refused may be attempted again
        return tables

    def _load(
        self,
        tables: list[TableRows],
        known: Mapping[TableName, TargetTable],
        lsn: Lsn,
        epoch: int,
    ) -> None:
        pipeline = self._batch.scope.pipeline
        if self._settings.replication_role == "origin":
            for table in tables:
                disable_triggers(self._connection, known[table.rules.target])
        destinations = {}
        for number, (stage, table) in StagedRows(pipeline, tables, ()).stages.items():
            target = table.rules.target
            command = Statements(stage, known[target]).copy()
            destinations[number] = Destination(command, target, stage.key_places)
        loader = Loader(
            url=self._settings.url.reveal(),
            log=self._log.changes,
            destinations=destinations,
            tables=frozenset((s.schema, s.table) for t in tables for s in t.shapes),
            pipeline=pipeline,
            lsn=lsn,
            epoch=epoch,
            role=self._settings.replication_role,
        )
        # Any version will do: rows between two positions never change.
        bounds = self._batch.census.low, self._unit.high.next
        slices = slices_of(self._log.snapshot(), *bounds, loader.wants)
        load_rows(self._batch.spark, slices, loader)

    def _refuse_other_way(self, begun: Collection[TableName]) -> None:
        """Rows without a key that were loaded in part would come twice if they were merged now."""
        for table in self._unit.tables:
            if table.rules.target in begun and not table.layout.key_names:
                name = ".".join(table.rules.target)
                raise TargetError(
                    f"{name} is loaded in part, and cannot be loaded further",
                    detail="It has no key, and rules, foreign keys or generated columns that it "
                    "did not have when its rows began to come.",
                    hint="Take them back until the rows of the snapshot are there: pgtide status",
                )
