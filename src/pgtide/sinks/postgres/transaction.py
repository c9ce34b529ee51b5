"""One unit of a batch as one transaction of the target: rows and commands in order, progress.

First the quick way: one row per key, table by table. If rows of the target are not as expected,
or a constraint does not hold in that order, the transaction is undone and the unit is done
again in the source's own order, event by event.
"""

from __future__ import annotations

import psycopg

from pgtide.config.sinks import PostgresSettings
from pgtide.errors import TargetUnavailable
from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.applying import Applier, Unexpected
from pgtide.sinks.postgres.bookkeeping import read_progress, write_progress
from pgtide.sinks.postgres.copying import stage_lines
from pgtide.sinks.postgres.failures import is_integrity
from pgtide.sinks.postgres.ordered import OrderedApplier
from pgtide.sinks.postgres.staged_rows import StagedRows
from pgtide.sinks.postgres.stages import empty_stages
from pgtide.sinks.postgres.target_tables import quoted_name, read_tables
from pgtide.sinks.postgres.units import Command, RowsOf, SweepOf, Truncate, Unit

ANALYZED = 5000  # rows of a batch, from which on the planner is told about stages


class TargetTransaction:
    """Brings one unit into the target."""

    def __init__(self, connection: SqlConnection, settings: PostgresSettings, unit: Unit) -> None:
        self._connection = connection
        self._settings = settings
        self._unit = unit
        self._batch = unit.batch

    def run(self, reached: Position) -> None:
        """Apply the unit to a target that is at ``reached``."""
        try:
            self._attempt(reached, every=False)
        except Unexpected:
            self._attempt(reached, every=True)
        except psycopg.Error as error:
            if not is_integrity(error):
                raise
            self._attempt(reached, every=True)

    def _attempt(self, reached: Position, *, every: bool) -> None:
        rows = StagedRows(self._pipeline, self._unit.tables, self._unit.cuts, every)
        loads = self._stage(rows) if rows.tables else []
        quiet = self._settings.replication_role == "origin"
        kind = OrderedApplier if every else Applier
        applier = kind(self._connection, self._batch, rows, loads, quiet, self._settings)
        with self._connection.transaction():
            self._begin(reached)
            for action in self._unit.actions:
                match action:
                    case RowsOf():
                        applier.apply(action.segment)
                    case Truncate():
                        self._truncate(action)
                    case Command():
                        self._command(action)
                    case SweepOf():
                        raise NotImplementedError
            write_progress(self._connection, self._pipeline, self._unit.high, self._log)

    @property
    def _pipeline(self) -> str:
        return self._batch.mark.pipeline

    @property
    def _log(self) -> str:
        return "/".join(self._batch.source.identity.values())

    def _stage(self, rows: StagedRows) -> list[int]:
        stages = [stage for stage, _ in rows.stages.values()]
        empty_stages(self._connection, self._pipeline, stages)
        commands = {stage.number: stage.copy() for stage in stages}
        url = self._settings.url.reveal()
        loads, count = stage_lines(rows.lines(self._batch.frame), url, commands)
        if count > ANALYZED:
            for stage in stages:
                self._connection.execute(f"ANALYZE {stage.name}".encode())
        return loads

    def _begin(self, reached: Position) -> None:
        """Make sure that nobody else has brought the target further meanwhile."""
        found = read_progress(self._connection, self._pipeline, lock=True)
        if found != reached:
            raise TargetUnavailable(
                "somebody else writes to the target",
                detail=f"Pipeline {self._pipeline} was at {reached}, and is at {found}.",
                hint="Let one process run the pipeline: pgtide status",
            )
        if self._settings.replication_role == "replica":
            self._connection.execute("SET LOCAL session_replication_role = replica")
        self._connection.execute("SET CONSTRAINTS ALL DEFERRED")

    def _truncate(self, action: Truncate) -> None:
        known = read_tables(self._connection, action.tables)
        names = ", ".join(quoted_name(name) for name in action.tables if name in known)
        restart = " RESTART IDENTITY" if action.restart_identity else ""
        if names:
            self._connection.execute(f"TRUNCATE {names}{restart}".encode())

    def _command(self, action: Command) -> None:
        statement = action.mark.payload.get("statement")
        if statement:
            path = action.mark.payload.get("search_path") or "public"
            self._connection.execute("SELECT set_config('search_path', %s, true)", [path])
            self._connection.execute(statement.encode())
            self._connection.execute("SELECT set_config('search_path', '', true)")
