"""Sweeps in lake tables: the rows that they are about, and what is done to those.

Which rows that are is told by positions alone. So a sweep may be done again whenever: rows that
came or were seen since have later positions, and what it removed is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby

from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from pgtide.pipeline.steps import Swept
from pgtide.sinks.delta.columns import RELATION, existing_columns
from pgtide.sinks.delta.target import Target
from pgtide.spark.codecs import Codec
from pgtide.spark.layout import Layout
from pgtide.spark.sql_text import Sql, quoted
from pgtide.spark.sweeps import Sweep, key_codecs, key_value

Concerned = Callable[[Sweep], Column]
"""What makes a row one of a sweep's, besides its key and partition: how old it is."""


@dataclass(frozen=True)
class Sweeping:
    """The sweeps of one step and the table that they are about."""

    target: Target
    step: Swept
    layout: Layout  # of the step, as the table's rows are read
    names: Mapping[str, str]  # of key columns at the source: what the table calls them
    concerned: Concerned

    def delete(self) -> None:
        """Delete the rows."""
        for sweeps in self._groups():
            if sweeps[0].keys is None:
                self._table().delete(self._any(sweeps))
            else:
                self._merge(sweeps[0], None)

    def update(self, values: Callable[[Sweep], Mapping[str, Column]]) -> None:
        """Set columns of the rows, to what the earliest sweep that is about a row says."""
        for sweeps in self._groups():
            if sweeps[0].keys is not None:
                self._merge(sweeps[0], values(sweeps[0]))
                continue
            said: dict[str, str | Column] = {}
            for sweep in reversed(sweeps):
                mine = self._rows(sweep)
                for name, value in values(sweep).items():
                    said[name] = F.when(mine, value).otherwise(said.get(name, value))
            self._table().update(self._any(sweeps), said)

    def _groups(self) -> Iterator[list[Sweep]]:
        """Sweeps that are done at once, in order: ranges that follow one another."""
        sweeps = [sweep for sweep in self.step.sweeps if self._applies(sweep)]
        for by_range, group in groupby(sweeps, key=lambda sweep: sweep.keys is None):
            if by_range:
                yield list(group)
            else:
                yield from ([sweep] for sweep in group)

    def _any(self, sweeps: Sequence[Sweep]) -> Column:
        return reduce(Column.__or__, map(self._rows, sweeps))

    def _rows(self, sweep: Sweep) -> Column:
        if sweep.whole:
            return self._mine(sweep)
        return self._mine(sweep) & sweep.in_range(self._key(0), self._codecs[0])

    def _mine(self, sweep: Sweep) -> Column:
        rows = self.concerned(sweep)
        return rows if sweep.partition is None else rows & (F.col(RELATION) == sweep.partition)

    def _merge(self, sweep: Sweep, values: Mapping[str, Column] | None) -> None:
        """One sweep of keys, which may be many: too many to be part of a condition."""
        names = [f"_pgtide_k{number}" for number in range(len(self._codecs))]
        keys = sweep.key_rows(self.target.spark, self._codecs, names)
        same = [F.col(f"s.{name}") == self._key(at, "t.") for at, name in enumerate(names)]
        merge = self._table().alias("t").merge(keys.alias("s"), reduce(Column.__and__, same))
        if values is None:
            merge.whenMatchedDelete(self._mine(sweep)).execute()
        else:
            merge.whenMatchedUpdate(self._mine(sweep), set=dict(values)).execute()

    def _applies(self, sweep: Sweep) -> bool:
        """Whether the table has the columns: it may have gone on to others since."""
        keys = {self.names.get(name, "") for name in self.layout.key_names}
        known = sweep.whole or (bool(keys) and keys <= self._kept.keys())
        return known and (sweep.partition is None or RELATION in self._kept)

    @cached_property
    def _codecs(self) -> list[Codec]:
        return key_codecs(self.layout)

    @cached_property
    def _kept(self) -> dict[str, DataType]:
        """The table's columns as they are now."""
        return {column.name: column.type for column in existing_columns(self.target.schema)}

    def _key(self, number: int, prefix: str = "") -> Column:
        name = self.names[self.layout.key_names[number]]
        column = Sql(f"{prefix}{quoted(name)}")
        return key_value(column, self._kept[name], self._codecs[number])

    def _table(self) -> SparkDeltaTable:
        return self.target.table()


def names_now(target: Target, layout: Layout, names: Mapping[str, str]) -> dict[str, str]:
    """Key columns by the names that the table has now: it may have been renamed since."""
    by_attnum = {column.attnum: column.name for column in existing_columns(target.schema)}
    by_attnum.pop(None, None)
    numbers = {column.name: column.attnum for column in layout.columns}
    return {key: by_attnum.get(numbers[key], name) for key, name in names.items()}
