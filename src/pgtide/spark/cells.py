"""Cells of a row of the log: its text arrays as typed columns, for rules and sinks.

What a type cannot hold is never altered silently. Under ``fail`` reading such a value raises
an error that names column and position, not the value; under ``null`` it is NULL and
``unrepresentable`` tells; under ``text`` a column whose type cannot hold everything that
Postgres can is a string from the start, so that its type does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from pgtide.config.model import Pipeline
from pgtide.rules.cells import Cell
from pgtide.spark.codecs import TEXT, Codec, codec_for
from pgtide.spark.compaction import unsent
from pgtide.spark.layout import Layout, Policy
from pgtide.spark.sql_text import case, element, literal


@dataclass(frozen=True)
class CellReader:
    """Reads rows of one layout under one policy."""

    layout: Layout
    policy: Policy = "fail"

    @classmethod
    def of(cls, layout: Layout, settings: Pipeline) -> CellReader:
        """Reads rows as a pipeline is told to."""
        return cls(layout.sized(settings.unbounded_numeric), settings.on_unrepresentable)

    def after(self, unchanged: tuple[int, ...] = ()) -> list[Cell]:
        """The new row; ``unchanged`` are columns that some rows of the frame were not sent."""
        return [
            self._cell(index, "after", ~unsent(index) if index in unchanged else None)
            for index in range(len(self.layout.columns))
        ]

    def before(self) -> list[Cell]:
        """The old row: the replica identity, everything else was not sent."""
        whole = self.layout.shape.replica_identity == "f"
        return [
            self._cell(index, "before", None if whole or column.identity else F.lit(False))
            for index, column in enumerate(self.layout.columns)
        ]

    def codec(self, index: int) -> Codec:
        """The codec of a column under the policy."""
        return self.as_read.codecs[index]

    @cached_property
    def as_read(self) -> Layout:
        """The layout under the policy."""
        return self.layout.under(self.policy)

    def unrepresentable(self, columns: Collection[str]) -> Column:
        """Column and text of each new value that its type cannot hold; mostly an empty array."""
        found = []
        for index, column in enumerate(self.layout.columns):
            codec, text = self.codec(index), element("after", index)
            if not codec.any_text and column.name in columns:
                value = f"named_struct('column', {literal(column.name)}, 'text', {text})"
                found.append(case(codec.unrepresentable(text), value))
        if not found:
            return F.expr("CAST(array() AS array<struct<column:string,text:string>>)")
        return F.expr(f"array_compact(array({', '.join(found)}))")

    def described(self, value: Column) -> list[Cell]:
        """A row by names and types alone; each cell has the same value, which is not its own."""
        return [self._described(index, value, value) for index in range(len(self.layout.columns))]

    def _cell(self, index: int, side: str, sent: Column | None) -> Cell:
        value, text = F.expr(self.as_read.typed(side, index)), F.expr(element(side, index))
        return self._described(index, value, text, sent)

    def _described(
        self, index: int, value: Column, text: Column, sent: Column | None = None
    ) -> Cell:
        column, kind = self.layout.columns[index], self.codec(index).spark_type
        return Cell(
            name=column.name,
            type=kind,
            value=value,
            text=text,
            sent=sent,
            type_oid=column.base_oid or column.type_oid,
            attnum=column.attnum,
            key=index in self.layout.keys,
            any_number=isinstance(kind, DecimalType) and codec_for(column) is TEXT,
        )
