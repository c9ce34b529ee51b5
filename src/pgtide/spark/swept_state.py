"""Sweeps in a table's state as it is rebuilt from the log: rows that are gone are left out."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.spark.logged_table import LoggedTable
from pgtide.spark.positions import before
from pgtide.spark.sql_text import Sql
from pgtide.spark.sweeps import Sweep, key_codecs, key_value


def sweeps_of(rows: DataFrame, table: LoggedTable) -> list[TableSweep]:
    """The sweeps of a table, which are few."""
    by_id = {shape.id: shape for shape in table.shapes}
    found = []
    for row in rows.filter("op = 'sweep'").select("shape", "lsn", "seq", "payload").collect():
        shape = by_id[row["shape"]]
        partition = shape.oid if shape.root_oid else None
        at = Position(Lsn(row["lsn"]), row["seq"])
        found.append(TableSweep(table, shape, Sweep.of(json.loads(row["payload"]), at, partition)))
    return found


@dataclass(frozen=True)
class TableSweep:
    """A sweep, and the shape whose key columns it speaks of."""

    table: LoggedTable
    shape: Shape
    sweep: Sweep

    def apply(self, state: DataFrame) -> DataFrame:
        """The rows, one per key, without those that are gone."""
        mine = before(self.sweep.older_than)
        if self.sweep.partition is not None:
            ids = [shape.id for shape in self.table.shapes if shape.oid == self.sweep.partition]
            mine &= F.col("shape").isin(*ids)
        if self.sweep.whole:
            return state.filter(~mine)
        numbers = self._key_numbers()
        if None in numbers:
            return state  # the key is another by now: a refresh of that one has followed
        codecs = [key_codecs(self.table.layout)[number] for number in numbers if number is not None]
        keys = [
            key_value(Sql(f"k{number}"), state.schema[f"k{number}"].dataType, codec)
            for number, codec in zip(numbers, codecs, strict=True)
        ]
        if self.sweep.keys is None:
            return state.filter(~(mine & self.sweep.in_range(keys[0], codecs[0])))
        names = [f"swept{number}" for number in range(len(keys))]
        swept = self.sweep.key_rows(state.sparkSession, codecs, names)
        same = [key == F.col(name) for key, name in zip(keys, names, strict=True)]
        return state.join(swept, reduce(operator.and_, same, mine), "left_anti")

    def _key_numbers(self) -> list[int | None]:
        """Where the key columns of the sweep's shape are among those of the table as it is now."""
        now = {column.name: column.attnum for column in self.table.layout.columns}
        found: list[int | None] = []
        for column in (self.shape.columns[index] for index in self.shape.keys):
            same = self.shape.oid == self.table.layout.shape.oid and column.attnum is not None
            found.append(
                next(
                    (
                        number
                        for number, name in enumerate(self.table.layout.key_names)
                        if (now[name] == column.attnum if same else name == column.name)
                    ),
                    None,
                )
            )
        return found
