"""Steps: what a batch does to each table, in order.

A table's rows between two barriers (TRUNCATE, a change of its layout, a rename, a drop) are
one step, and so is each barrier. A sweep is a step that cuts no rows. Steps of one target
follow one another; targets are independent of each other unless a rename ties them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgtide.pipeline.relation_histories import Look
from pgtide.position import Position
from pgtide.shape import Shape
from pgtide.spark.compaction import Traits
from pgtide.spark.layout import Layout, TableName
from pgtide.spark.sweeps import Sweep


@dataclass(frozen=True)
class Rows:
    """Row events of one layout: all of the table's between two positions, both included."""

    table: TableName
    layout: Layout
    shapes: tuple[Shape, ...]
    low: Position
    high: Position
    count: int
    traits: Traits


@dataclass(frozen=True)
class Truncated:
    """The table was emptied, or one of its partitions."""

    table: TableName
    at: Position
    layout: Layout
    partition: int | None = None


@dataclass(frozen=True)
class Swept:
    """Rows that were not seen since some position are gone at the source: all, or some of them.

    Whatever comes behind a sweep has a later position than the rows that it removes. So it cuts
    no step of rows, and may see more of them than those before it.
    """

    table: TableName
    at: Position
    layout: Layout
    sweeps: tuple[Sweep, ...]  # the earliest first

    @property
    def cuts(self) -> bool:
        """Whether rows behind it have to wait for it: equal rows are one to a keyless mirror."""
        return not self.layout.key_names


@dataclass(frozen=True)
class Reshaped:
    """The table was created, or its columns changed."""

    table: TableName
    at: Position
    layout: Layout
    added: Mapping[int, str | None] = field(default_factory=dict)
    """By attnum: what older rows have in a column that was added, as text; None: NULL.

    Without columns whose values were computed for each row."""
    before: Look | None = None  # None: it was created


@dataclass(frozen=True)
class Renamed:
    """The table has another name from here on."""

    table: TableName
    at: Position
    to: TableName
    relation: int


@dataclass(frozen=True)
class Dropped:
    """The table is gone."""

    table: TableName
    at: Position
    relation: int


Step: TypeAlias = Rows | Truncated | Swept | Reshaped | Renamed | Dropped


@dataclass(frozen=True)
class TableWork:
    """The steps of one table, or of several that renames tie together."""

    tables: frozenset[TableName]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return ", ".join(".".join(table) for table in sorted(self.tables))

    @property
    def low(self) -> Position:
        return position_of(self.steps[0])

    def touches(self, tables: frozenset[str]) -> bool:
        """Whether one of its tables is among these, named ``schema.table``."""
        return any(f"{schema}.{table}" in tables for schema, table in self.tables)


def position_of(step: Step) -> Position:
    """Where a step begins."""
    return step.low if isinstance(step, Rows) else step.at


def relation_of(step: Step) -> int:
    """The relation that a step is about; of a partition the root."""
    return step.relation if isinstance(step, Renamed | Dropped) else step.layout.shape.oid


def group_steps(steps: Iterable[Step]) -> list[TableWork]:
    """Put the steps in order, table by table; names that a rename connects stay together.

    Be it one that nobody told: then a relation has steps under two names.
    """
    groups: dict[TableName, set[TableName]] = {}
    first: dict[int, TableName] = {}
    ordered = sorted(steps, key=position_of)
    for step in ordered:
        group = groups.setdefault(step.table, {step.table})
        other = step.table
        if isinstance(step, Renamed):
            other = step.to
        elif isinstance(step, Rows | Truncated | Reshaped | Swept):
            other = first.setdefault(step.layout.shape.oid, step.table)
        if other not in group:
            group |= groups.get(other, {other})
            groups.update(dict.fromkeys(group, group))
    unique = {frozenset(group) for group in groups.values()}
    return [
        TableWork(tables, tuple(_joined(step for step in ordered if step.table in tables)))
        for tables in sorted(unique, key=sorted)
    ]


def _joined(steps: Iterable[Step]) -> list[Step]:
    """Sweeps that follow one another as one step: each chunk of a refresh may end with one."""
    joined: list[Step] = []
    for step in steps:
        last = joined[-1] if joined else None
        if isinstance(step, Swept) and isinstance(last, Swept) and last.layout == step.layout:
            joined[-1] = replace(last, sweeps=(*last.sweeps, *step.sweeps))
        else:
            joined.append(step)
    return joined
