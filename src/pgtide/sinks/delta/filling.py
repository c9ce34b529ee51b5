"""Filling columns that were added, in rows that a table of the lake has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column

from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Dropped, Reshaped, Step, Truncated, relation_of
from pgtide.sinks.added_columns import AddedColumns
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.mirror import MirrorPlan
from pgtide.sinks.delta.quarantine import Quarantine
from pgtide.sinks.delta.reached import has, has_begun
from pgtide.sinks.delta.target import SHAPED_AT_PROPERTY, Target
from pgtide.sinks.delta.versions import VersionsPlan
from pgtide.sinks.lost_values import TYPE
from pgtide.spark.sql_text import quoted

Plan: TypeAlias = MirrorPlan | VersionsPlan


@dataclass(frozen=True)
class Filling:
    """What ADD COLUMN does to rows that are there, in a batch."""

    batch: Batch
    quarantine: Quarantine

    def fill(
        self, target: Target, plan: Plan, step: Reshaped, rows: Column, later: Sequence[Step]
    ) -> None:
        """Give these rows, from before a command, what it gave them in the columns it added.

        Where only the rows can tell, they are asked for, unless ``later`` steps leave none.
        """
        added = AddedColumns(target.spark, step, plan.rules, plan.reader)
        if not added.names or has(target, step.at):
            return
        shaped = _shaped_by(target, step)
        there = (shaped or added.hinges) and not target.frame().filter(rows).isEmpty()
        # What a filter has kept out it may let in now, whatever the table has.
        hidden = added.filtered and has_begun(target)
        if added.hinges and (there or hidden) and not _leaves_nothing(step, later):
            self.batch.read_again(plan.layout, step.at, added.why)
        if not (shaped and there):
            return
        if plan.reader.policy == "null":
            self.quarantine.add(step.table, added.lost(), TYPE)
        _fill_columns(target, rows, added, plan.columns())


def _shaped_by(target: Target, step: Reshaped) -> bool:
    """Whether the table got its columns by this command: others name the same columns too.

    CREATE INDEX tells again what ADD COLUMN gave older rows, who may hold something else by now.
    """
    return target.properties().get(SHAPED_AT_PROPERTY) == str(step.at)


def _leaves_nothing(step: Reshaped, later: Sequence[Step]) -> bool:
    """Whether the source has none of a table's older rows any more, by what follows."""
    relation = step.layout.shape.oid
    return any(
        isinstance(each, Dropped) or (isinstance(each, Truncated) and each.partition is None)
        for each in later
        if relation_of(each) == relation
    )


def _fill_columns(
    target: Target, rows: Column, added: AddedColumns, columns: Sequence[TargetColumn]
) -> None:
    """Give rows the known values of columns that were added.

    A merge with one row, because an update takes no values from elsewhere: literals would have
    to come by way of Python, which does not know all of their types.
    """
    names = {column.attnum: column.name for column in columns}
    cells = [cell for cell in added.cells() if cell.attnum in names]
    if not cells:
        return
    values = [cell.value.alias(f"v{number}") for number, cell in enumerate(cells)]
    found = added.row().select(*values)
    # Asked now: what a type cannot hold is refused before anything is written, and columns
    # that are NULL are so already.
    nulls = found.select(*[value.isNull() for value in map(found.__getitem__, found.columns)])
    empty = nulls.first() or ()
    wanted: dict[str, str | Column] = {
        quoted(names[cell.attnum]): f"new.v{number}"
        for number, cell in enumerate(cells)
        if not empty[number]
    }
    if not wanted:
        return
    merge = target.table().alias("old").merge(found.alias("new"), rows)
    merge.whenMatchedUpdate(set=wanted).execute()
