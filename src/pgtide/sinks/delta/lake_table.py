"""One table of the lake and the steps of a batch: what all modes have in common.

Steps may come again, after a crash or a lost checkpoint. Statements that change a table's
columns are not covered by Delta's transaction ids, so a table remembers from which position
on it has the columns that it has: a step from before that was applied when they changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgtide.config.sinks import DeltaSettings
from pgtide.errors import TargetError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import (
    Dropped,
    Renamed,
    Reshaped,
    Rows,
    Step,
    Swept,
    TableWork,
    Truncated,
    position_of,
    relation_of,
)
from pgtide.position import Position
from pgtide.sinks.delta.columns import RELATION, TargetColumn, existing_columns
from pgtide.sinks.delta.filling import Filling
from pgtide.sinks.delta.key_types import refuse_other_keys
from pgtide.sinks.delta.lake import Lake, is_later, name_aside
from pgtide.sinks.delta.quarantine import Quarantine
from pgtide.sinks.delta.reached import first_missing
from pgtide.sinks.delta.reshape import reshape
from pgtide.sinks.delta.target import (
    MODE_PROPERTY,
    RELATION_PROPERTY,
    SHAPED_AT_PROPERTY,
    SOURCE_PROPERTY,
    Target,
)
from pgtide.sinks.source_names import SourceNames
from pgtide.spark.layout import TableName


class LakeTable(ABC):
    """One writer's view of a table of the lake, or of several that renames tie together."""

    mode: ClassVar[str]
    keeps_past: ClassVar[bool] = True
    """Whether the table tells about times before: columns and tables dropped at the source
    stay, and a table made anew under an old name does not replace the old one's."""
    merges: ClassVar[bool] = True
    """Whether rows are found again by their key."""

    def __init__(
        self, spark: SparkSession, batch: Batch, work: TableWork, settings: DeltaSettings
    ) -> None:
        self._batch = batch
        self._work = work
        self._settings = settings
        self._names = SourceNames(batch)
        self._lake = Lake(spark, settings, batch.source)
        self._quarantine = Quarantine(spark, settings, batch)
        self._filling = Filling(batch, self._quarantine)

    def look(self) -> dict[int, TableName]:
        """Where in the lake relations are, by any name of these tables; before anybody writes."""
        routed = {self._name(table) for table in self._names.ever(self._work.tables)}
        found = self._lake.look(routed)
        missing = {(step.table, relation_of(step)) for step in self._work.steps}
        aside = {
            name_aside(self._name(table), relation)
            for name, relation in missing
            if relation not in found
            for table in {name, *self._names.of(relation)}
        }
        return found | self._lake.look(aside)

    def apply(self, places: Mapping[int, TableName]) -> None:
        """Apply the steps in order; those that were applied before are passed over."""
        self._lake.know(places)
        steps = self._to_do()
        for number, step in enumerate(steps):
            self._step(step, steps[number + 1 :])

    def _to_do(self) -> Sequence[Step]:
        """The steps that matter."""
        return self._work.steps

    def _step(self, step: Step, later: Sequence[Step]) -> None:
        match step:
            case Rows():
                self._rows(step, later)
            case Truncated():
                self._truncated(step)
            case Swept():
                if self._may_sweep(step):
                    self._swept(step)
            case Reshaped():
                self._reshaped(step, later)
            case Renamed():
                self._lake.rename(step.relation, self._name(step.to), step.at)
            case Dropped():
                if self._settings.dropped_tables == "drop":
                    self._lake.drop(step.relation, step.at)

    @abstractmethod
    def _rows(self, step: Rows, later: Sequence[Step]) -> None:
        """Write the rows of a step that others follow."""

    @abstractmethod
    def _truncated(self, step: Truncated) -> None:
        """Follow a TRUNCATE; done again, at any time, it finds nothing."""

    @abstractmethod
    def _swept(self, step: Swept) -> None:
        """Remove what is gone at the source; done again, at any time, it finds nothing."""

    @abstractmethod
    def _reshaped(self, step: Reshaped, later: Sequence[Step]) -> None:
        """Follow a change of the columns, which other steps follow."""

    def _holding(self, step: Truncated) -> Target | None:
        """The table that has the rows of a TRUNCATE; None if it cannot have any.

        Another may have its name by now. It learns to tell partitions apart when the first row
        of one comes.
        """
        relation = step.layout.shape.oid
        target = self._lake.target(self._name(step.table), relation)
        if target.properties().get(RELATION_PROPERTY) != str(relation):
            return None
        if step.partition and RELATION not in target.schema.names:
            return None
        return target

    def _may_sweep(self, step: Swept) -> bool:
        """Whether there is a table, and the route lets rows be read and deleted.

        Where it leaves rows out that were read, none in the table would look as if it was seen.
        """
        there = self._lake.place(step.layout.shape.oid) is not None
        return there and {"insert", "delete"} <= self._batch.rules(step.table).operations

    def _name(self, table: TableName) -> TableName:
        return self._names.target(table)

    def _ready(self, step: Rows | Reshaped, columns: list[TargetColumn]) -> Target | None:
        """The table with these columns; None if it has gone on to those of a later step."""
        relation, at = step.layout.shape.oid, position_of(step)
        name = self._name(step.table)
        if self._lake.place(relation) not in (None, *self._names.targets_from(step.layout.shape)):
            self._lake.follow(relation, name, at)
        target = self._lake.target(name, relation)
        table = target.open()
        properties = {} if table is None else dict(table.metadata().configuration)
        if table is not None and properties.get(MODE_PROPERTY) != self.mode:
            raise _other_mode(target, self.mode)
        holder = None if table is None else int(properties[RELATION_PROPERTY])
        if table is not None and holder == relation:
            if self._lake.place(relation) is None:
                self._lake.placed(relation, name)  # another writer has made it since
            return self._shaped(target, table, step, columns)
        if holder is not None:
            self._names.refuse_routes(step.table, target.path, holder)
        if is_later(properties, at) or self._lake.is_gone(relation, at):
            return None
        return self._made(target, holder, step, columns)

    def _shaped(
        self,
        target: Target,
        table: DeltaTable,
        step: Rows | Reshaped,
        columns: list[TargetColumn],
    ) -> Target | None:
        """The relation's own table, with these columns from here on."""
        if not differs(target, columns):
            return target
        at = position_of(step)
        if isinstance(step, Rows):
            # Some of its rows may be there, from before the table got the columns that it has.
            at = max(at, first_missing(table))
            if step.high < at:
                return None
        shaped_at = table.metadata().configuration.get(SHAPED_AT_PROPERTY)
        if shaped_at is not None and at < Position.parse(shaped_at):
            return None
        if self.merges:
            shapes = self._batch.shapes.values()
            refuse_other_keys(self._batch.scope.pipeline, target, columns, step.layout, shapes)
        # First the mark: what is left undone after a crash is done when the step comes again.
        target.set_properties({SHAPED_AT_PROPERTY: str(at)})
        drop = self._settings.dropped_columns == "drop" and not self.keeps_past
        reshape(target, columns, drop=drop)
        return target

    def _made(
        self,
        target: Target,
        holder: int | None,
        step: Rows | Reshaped,
        columns: list[TargetColumn],
    ) -> Target | None:
        """A new table, where there is none or that of a relation which was dropped since."""
        relation, at, name = step.layout.shape.oid, position_of(step), self._name(step.table)
        if holder is not None:
            self._names.refuse_shared(step.table, target.path, holder)
            if self.keeps_past:
                self._lake.set_aside(name, holder)
            else:
                self._lake.replaced(holder, at)
        made = {
            RELATION_PROPERTY: str(relation),
            MODE_PROPERTY: self.mode,
            SHAPED_AT_PROPERTY: str(at),
            SOURCE_PROPERTY: self._lake.source,
        }
        if not target.create(columns, made):
            return self._ready(step, columns)
        self._lake.placed(relation, name)
        return target


def _other_mode(target: Target, mode: str) -> TargetError:
    return TargetError(
        "a table of the lake is not what the pipeline would make it",
        detail=f"{target.path} exists and was not made in mode {mode}.",
        hint="Name another path in the pipeline's sink, or move that table away.",
    )


def differs(target: Target, wanted: list[TargetColumn]) -> bool:
    """Whether a column is missing, or has another name or type."""
    existing = existing_columns(target.schema)
    return not set(wanted) <= set(existing) or any(
        column.attnum is not None and column not in wanted for column in existing
    )
