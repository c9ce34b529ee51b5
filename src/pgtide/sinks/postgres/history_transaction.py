"""A batch of events as one transaction of the target: tables and rows in order, progress.

Rows are staged by Spark's tasks first. What comes again after a crash is known by the progress,
which is written with them; a position that came twice all the same is refused by the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pgtide.errors import TargetError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Renamed, Reshaped, Rows, Step
from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.event_steps import event_steps
from pgtide.sinks.postgres.bookkeeping import expect_progress, lock_progress, write_progress
from pgtide.sinks.postgres.copying import stage_lines
from pgtide.sinks.postgres.failures import TableRefused
from pgtide.sinks.postgres.history_appending import Appending
from pgtide.sinks.postgres.history_rows import HistoryLayout, lines
from pgtide.sinks.postgres.history_tables import HistoryTables
from pgtide.sinks.postgres.history_types import read_types
from pgtide.sinks.postgres.keeping import note_tables
from pgtide.sinks.postgres.stages import prepare_stages
from pgtide.sinks.sharing import clashes
from pgtide.spark.layout import Layout


@dataclass
class HistoryTransaction:
    """Brings one batch into the target."""

    connection: SqlConnection
    url: str = field(repr=False)
    batch: Batch
    scope: str  # whose progress it is
    _layouts: dict[Layout, HistoryLayout] = field(default_factory=dict)

    def run(self, reached: Position) -> Position:
        """Append what a target that is at ``reached`` lacks; where it is then."""
        for clash in clashes(self.batch):
            target = self.batch.rules(min(clash.work.tables)).target
            raise TableRefused(target, clash.error)
        steps = [step for work in self.batch.work for step in event_steps(self.batch, work.steps)]
        self._look(steps)
        loads = self._stage(steps)
        high = self.batch.census.high
        assert high is not None, "a batch has rows"
        log = "/".join(self.batch.source.identity.values())
        with self.connection.transaction():
            found = lock_progress(self.connection, self.scope, log)
            expect_progress(self.batch.scope.pipeline, found, reached)
            tables = HistoryTables(self.connection, self.batch, log)
            for step in steps:
                self._step(step, tables, loads)
            note_tables(self.connection, self.scope, self.batch, high)
            write_progress(self.connection, self.scope, high, log)
        return high

    def _look(self, steps: Sequence[Step]) -> None:
        """Find out what the target makes of the columns of each layout."""
        layouts = {step.layout for step in steps if isinstance(step, Rows | Reshaped)}
        columns = [column for layout in layouts for column in layout.columns]
        types = read_types(self.connection, columns)
        self._layouts = {one: HistoryLayout(self.batch, one, types) for one in layouts}

    def _stage(self, steps: Sequence[Step]) -> list[int]:
        """Copy all events to where the target has them at hand; the loads that count."""
        rows: dict[Layout, list[Rows]] = {}
        for step in steps:
            if isinstance(step, Rows):
                rows.setdefault(step.layout, []).append(step)
        if not rows:
            return []
        stages = {self._layouts[one].stage.number: self._layouts[one] for one in rows}
        prepare_stages(self.connection, self.scope, [one.stage for one in stages.values()])
        destinations = {
            number: one.stage.destination(one.rules.target) for number, one in stages.items()
        }
        staged = lines([(self._layouts[one], mine) for one, mine in rows.items()])
        loads, _ = stage_lines(staged, self.url, destinations)
        return loads

    def _step(self, step: Step, tables: HistoryTables, loads: Sequence[int]) -> None:
        target = self.batch.rules(step.table).target
        try:
            match step:
                case Rows():
                    history = self._layouts[step.layout]
                    table = tables.ready(step, history.columns)
                    Appending.of(self.connection, history, table, loads, step).run()
                case Reshaped():
                    tables.ready(step, self._layouts[step.layout].columns)
                case Renamed():
                    tables.rename(step.relation, step.to)
        except TargetError as error:
            raise TableRefused(target, error) from error
