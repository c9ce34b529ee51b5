"""Rows of a unit on their way into stages, by Spark's tasks.

What only adds rows to its tables need not be there when others are changed: it is staged while the
target works on those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgtide.errors import TargetUnavailable
from pgtide.log.reader import Log
from pgtide.pipeline.reading import LogFrames
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.references import read_references
from pgtide.sinks.postgres.copying import stage_lines
from pgtide.sinks.postgres.plain_state import PlainTables
from pgtide.sinks.postgres.plain_tasks import stage_from_files
from pgtide.sinks.postgres.refused_lines import Destination
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.sinks.postgres.stages import Stage, prepare_stages
from pgtide.sinks.postgres.statements import Chosen
from pgtide.sinks.postgres.sweeping import StagedSweep
from pgtide.sinks.postgres.target_tables import read_tables
from pgtide.sinks.postgres.units import RowsOf, Unit

ANALYZED = 5000  # rows of a batch, from which on the planner is told about stages
BESIDE_ROWS = 20_000  # added by a unit, from which on a job of their own is worth while


@dataclass(frozen=True)
class Copied:
    """What tasks have brought into stages."""

    stages: Sequence[Stage]
    loads: list[int]  # those that count
    rows: int

    def expect(self, connection: SqlConnection) -> None:
        """Make sure that all of it is there, and stays there until this transaction ends.

        A second run of the pipeline empties stages before it finds out that it is one.
        """
        if not self.stages:
            return
        chosen = Chosen(self.loads)
        counts = (f"SELECT count(*) FROM {s.name} s WHERE {chosen.of(s)}" for s in self.stages)
        query = f"SELECT sum(n) FROM ({' UNION ALL '.join(counts)}) AS counted(n)"
        if connection.execute(query.encode()).fetchone() != (self.rows,):
            raise TargetUnavailable(
                "somebody else writes to the target",
                detail="Rows that were staged are not there any more.",
                hint="Let one process run the pipeline: pgtide status",
            )


@dataclass(frozen=True)
class Stager:
    """Stages the rows of one unit."""

    connection: SqlConnection
    url: str = field(repr=False)
    unit: Unit
    scope: str
    frames: LogFrames
    log: Log

    def prepare(self, parts: Sequence[StagedRows], sweeps: Sequence[StagedSweep] = ()) -> None:
        """Have the stages of these, and no others."""
        stages = [stage for rows in parts for stage, _ in rows.stages.values()]
        stages += [sweep.stage for sweep in sweeps if sweep.stage is not None]
        if stages:
            prepare_stages(self.connection, self.scope, stages)

    def stage(self, rows: StagedRows, sweeps: Sequence[StagedSweep] = ()) -> Copied:
        """Bring rows, and keys that sweeps spare, to where the target has them at hand."""
        copied = self.copy(rows, sweeps)
        if copied.rows > ANALYZED:
            known = rows.stages.values()
            new = {stage for stage, t in known if t.as_they_are and not t.traits.reads}
            joined = {stage for stage, _ in known} - new  # what is only read through needs no plan
            for stage in joined | {sweep.stage for sweep in sweeps if sweep.stage is not None}:
                self.connection.execute(stage.analyze().encode())
        return copied

    def copy(self, rows: StagedRows, sweeps: Sequence[StagedSweep] = ()) -> Copied:
        """The same, telling the planner nothing; needs no connection of the driver."""
        targets = {stage: table.rules.target for stage, table in rows.stages.values()}
        spared = []
        for sweep in sweeps:
            if sweep.stage is not None:
                targets[sweep.stage] = sweep.table
                spared.append(sweep.spared(self.frames, self.log.snapshot()))
        if not targets:
            return Copied((), [], 0)
        destinations = {stage.number: stage.destination(table) for stage, table in targets.items()}
        plain, others = self._parted(rows)
        staged = self._from_files(plain, destinations) if plain.tables else ([], 0)
        if staged is None:
            others, staged = rows, ([], 0)
        loads, count = staged
        if others.tables or spared:
            lines = others.lines(self.unit.batch.frame, spared)
            more, further = stage_lines(lines, self.url, destinations)
            loads, count = [*loads, *more], count + further
        return Copied([*targets], loads, count)

    def _parted(self, rows: StagedRows) -> tuple[StagedRows, StagedRows]:
        """Rows that can take the short way, and those that need Spark's SQL."""
        possible = not rows.every and bool(self.unit.batch.census.files)
        plain = [table for table in rows.tables if possible and table.plain]
        others = [table for table in rows.tables if table not in plain]
        return replace(rows, tables=plain), replace(rows, tables=others)

    def _from_files(
        self, rows: StagedRows, destinations: Mapping[int, Destination]
    ) -> tuple[list[int], int] | None:
        """The short way; None where that is too much for it."""
        batch = self.unit.batch
        tables = PlainTables.of(rows.tables, rows.cuts)
        return stage_from_files(
            batch.spark, self.log.changes, batch.census, tables, self.url, destinations
        )

    def added_last(self, tables: Sequence[TableRows]) -> list[TableRows]:
        """Tables that only get rows, many of them, which no other of the unit refers to."""
        added = [t for t in tables if t.as_they_are and not t.traits.reads]
        if self.unit.actions != (RowsOf(0),) or not 0 < len(added) < len(tables):
            return []
        ids = {shape.id for table in added for shape in table.shapes}
        counts = self.unit.batch.census.counts
        if sum(count.rows for count in counts if count.shape in ids) < BESIDE_ROWS:
            return []
        names = [table.rules.target for table in tables]
        known = {name: table.oid for name, table in read_tables(self.connection, names).items()}
        theirs = {known.get(table.rules.target) for table in added}
        references = read_references(self.connection, sorted(known.values()))
        if any(parent in theirs and child not in theirs for child, parent in references):
            return []
        return added
