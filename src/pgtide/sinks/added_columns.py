"""ADD COLUMN: what rows from before it have in the column, as rules leave it.

No event tells it. It is the default, or NULL: of that only SQL makes something, or a filter. Where
rules make the value from the column alone, or from others that the same command added, it is one
value for all rows. Where they look at other columns, or a filter looks at the new one, only the
rows can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.pipeline.steps import Reshaped
from pgtide.rules import Cell, TableRules
from pgtide.rules.origins import Origins
from pgtide.sinks.lost_values import untouched
from pgtide.spark.cells import CellReader

_ROW = pa.schema(
    {"op": pa.string(), "after": pa.list_(pa.string()), "lsn": pa.int64(), "seq": pa.int64()}
)


@dataclass(frozen=True)
class AddedColumns:
    """The columns that one command gave a table."""

    spark: SparkSession
    step: Reshaped
    rules: TableRules
    reader: CellReader

    @cached_property
    def names(self) -> frozenset[str]:
        """Those that make a difference to older rows, by their names at the source."""
        added, of_null = self.step.added, self._origins.of_null
        columns = [c for c in self.reader.layout.columns if c.attnum in added]
        given = {c.name for c in columns if added[c.attnum or 0] is not None}
        return frozenset(given | {c.name for c in columns if c.name in of_null})

    @property
    def known(self) -> frozenset[str]:
        """Columns, by their names at the source, that have one value in all older rows."""
        if self.filtered:
            return frozenset()
        made = self._origins.values
        return frozenset(name for name in self.names & made.keys() if made[name] <= self.names)

    @property
    def hinges(self) -> bool:
        """Whether older rows may be others now, in a way that only they can tell."""
        made, known = self._origins.values, self.known
        unknown = ({name, *origins} for name, origins in made.items() if name not in known)
        return self.filtered or any(not self.names.isdisjoint(names) for names in unknown)

    @property
    def filtered(self) -> bool:
        """Whether a filter may judge older rows otherwise now, be it that it kept them out."""
        return not self.names.isdisjoint(self._origins.filters)

    @property
    def why(self) -> str:
        """Why only the rows can tell."""
        if self.filtered:
            return "a filter looks at the column"
        return "SQL makes it from others, or others from it"

    def cells(self) -> list[Cell]:
        """What rules make of the known columns, over ``row``."""
        attnums = {c.attnum for c in self.reader.layout.columns if c.name in self.known}
        cells = self.rules.apply(self.reader.after(), F.col("op"))
        return [cell for cell in cells if cell.attnum in attnums]

    def row(self) -> DataFrame:
        """A row that has nothing but these columns, as if it were inserted by the command."""
        added, at = self.step.added, self.step.at
        texts = [added.get(c.attnum or 0) for c in self.reader.layout.columns]
        event = {"op": "insert", "after": texts, "lsn": int(at.lsn), "seq": at.seq}
        # From Arrow: plans print literals, and a rule may be there to hide this one.
        return self.spark.createDataFrame(pa.Table.from_pylist([event], _ROW))

    def lost(self) -> DataFrame:
        """Known values that their type cannot hold and no rule hides, as a quarantine wants them:
        ``column, key, lsn, seq, text``."""
        shown = self.known & untouched(self.reader, self.rules)
        values = F.explode(self.reader.unrepresentable(shown)).alias("value")
        key = F.lit(None).cast("string").alias("key")  # they are every older row's
        found = self.row().select(values, key, "lsn", "seq")
        return found.select("value.column", "key", "lsn", "seq", "value.text")

    @cached_property
    def _origins(self) -> Origins:
        return self.rules.origins(column.name for column in self.reader.layout.columns)
