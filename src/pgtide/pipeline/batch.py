"""A batch on its way to a sink: raw rows of the log, and what they do to which table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from pgtide.config.model import Pipeline
from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError, PipelineError
from pgtide.log.source import LogSource
from pgtide.pipeline.census import Census, steps_of
from pgtide.pipeline.completion import Completion
from pgtide.pipeline.relation_histories import Told
from pgtide.pipeline.state import Parked
from pgtide.pipeline.steps import Renamed, Rows, TableWork, group_steps
from pgtide.position import Position
from pgtide.rules import TableRules, compile_rules
from pgtide.rules.partitions import misplaced, numbered
from pgtide.shape import Shape
from pgtide.sinks import Scope
from pgtide.spark.alignment import of_shapes
from pgtide.spark.layout import ROW_OPS, Layout, TableName
from pgtide.spark.positions import at_or_after, at_or_before


@dataclass(frozen=True)
class Batch:
    """Rows of the log between two moments."""

    spark: SparkSession
    frame: DataFrame
    shapes: Mapping[int, Shape]
    census: Census
    scope: Scope
    settings: Pipeline
    source: LogSource  # of the log
    earlier: tuple[Told, ...] = ()  # by commands of a transaction that began before the batch
    parked: frozenset[str] = frozenset()  # tables that wait
    lacking: Mapping[str, Parked] = field(default_factory=dict)  # the same, and since when
    only: frozenset[str] | None = None  # tables that catch up, while all others have theirs
    from_start: bool = False  # they do so from the beginning of the log
    completion: Completion | None = None  # tables that are being read as a whole
    passed_over: dict[str, int] = field(default_factory=dict)  # by table: sinks count here
    skipped_writes: dict[str, int] = field(default_factory=dict)  # likewise

    @cached_property
    def work(self) -> list[TableWork]:
        """What there is to do, for the tables that the pipeline selects."""
        return [
            work
            for work in self._selected
            if not work.touches(self.parked) and (self.only is None or work.touches(self.only))
        ]

    @cached_property
    def waiting(self) -> list[TableWork]:
        """What has to wait, because one of its tables is parked."""
        return [work for work in self._selected if work.touches(self.parked)]

    @cached_property
    def _selected(self) -> list[TableWork]:
        patterns = TablePatterns(self.settings.tables)
        steps = steps_of(self.census, self.shapes, self.earlier)
        for step in steps:
            if isinstance(step, Renamed):
                self._refuse_half(step, patterns)
        return group_steps(step for step in steps if patterns.matches(*step.table))

    def _refuse_half(self, step: Renamed, patterns: TablePatterns) -> None:
        """A table that gets a selected name has rows that the pipeline has passed over."""
        if patterns.matches(*step.to) and not patterns.matches(*step.table):
            old = ".".join(step.table)
            raise PipelineError(
                "a table was renamed into the pipeline's selection",
                detail=f"{old} became {'.'.join(step.to)}; what it held before was not delivered.",
                hint=f"Add {old} to the pipeline's tables, then run: "
                f"pgtide replay --pipeline {self.scope.pipeline}",
            )

    def completes(self, layout: Layout, at: Position) -> bool:
        """Whether a row that is not whole at a position comes as a whole later."""
        known = self.completion
        return known is not None and known.covers(layout.table, layout.shape.oid, at)

    def can_read_again(self, layout: Layout) -> bool:
        """Whether rows that are read would find those that a target has."""
        return bool(layout.key_names) and "insert" in self.rules(layout.table).operations

    def read_again(self, layout: Layout, at: Position, why: str) -> None:
        """Ask for rows of which a command changed more than events tell."""
        if not self.can_read_again(layout):
            raise PipelineError(
                "rows need values that only the source has, and cannot be read again",
                detail=f"At {at} a column was added to {'.'.join(layout.table)}, which has no key, "
                f"or a route without inserts. What rules make of it hinges on each row: {why}.",
                hint="Give the table a key, exclude the column, or let its rule look at nothing "
                "else; then start the pipeline again.",
            )
        assert self.completion is not None, "a pipeline's batch knows the log"
        self.completion.ask(layout.shape, at, why)

    def pass_over(self, table: TableName, rows: int) -> None:
        """Count events that a sink leaves out for now; one thread per table calls this."""
        name = ".".join(table)
        self.passed_over[name] = self.passed_over.get(name, 0) + rows

    def skip_write(self, table: TableName) -> None:
        """Count a write that the target has already, from when it came the first time."""
        name = ".".join(table)
        self.skipped_writes[name] = self.skipped_writes.get(name, 0) + 1

    def table_rows(self) -> dict[str, int]:
        """How many events of each table were delivered."""
        tables = {step.table for work in self.work for step in work.steps}
        counts: dict[str, int] = {}
        for count in self.census.counts:
            if count.shape is None or count.op not in ROW_OPS:
                continue
            table = Layout.of(self.shapes[count.shape], self.shapes).table
            if table in tables:
                name = ".".join(table)
                counts[name] = counts.get(name, 0) + count.rows
        return counts

    def rules(self, table: TableName) -> TableRules:
        """What the pipeline's rules say about a table."""
        if table in self._misplaced:
            raise self._misplaced[table]
        return compile_rules(self.settings.rules, self.settings.routes, *table)

    @cached_property
    def _misplaced(self) -> dict[TableName, ConfigError]:
        """By table: a rule that names its partitions only, and would not be applied."""
        items = numbered(self.settings.rules, self.settings.routes)
        return dict(misplaced(items, self.shapes.values()) if items else ())

    @cached_property
    def changes(self) -> DataFrame:
        """The rows without sweeps, which are steps and no events of a row."""
        return self.frame.filter("op <> 'sweep'") if self.census.swept else self.frame

    def rows(self, step: Rows) -> DataFrame:
        """The rows of a step, their arrays in the order of its layout."""
        ids = [shape.id for shape in step.shapes]
        frame = self.changes.filter(of_shapes(ids))
        # Only where something is cut off: Spark compiles code anew for every other number.
        counts = [count for count in self.census.counts if count.shape in ids]
        if step.low > min(count.low for count in counts):
            frame = frame.filter(at_or_after(step.low))
        if step.high < max(count.high for count in counts):
            frame = frame.filter(at_or_before(step.high))
        return step.layout.align(frame, step.shapes)
