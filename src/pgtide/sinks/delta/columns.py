"""Columns of a lake table: named and typed as at the source, known by their attnum.

A column's comment holds the attnum, which outlives every rename on either side. That makes
following a schema change a matter of comparing what is there with what is wanted, and safe
to repeat after a crash between two statements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pgtide.position import Position
from pgtide.spark.positions import before

LSN = "_pgtide_lsn"
SEQ = "_pgtide_seq"
COMMITTED_AT = "_pgtide_committed_at"
DELETED = "_pgtide_deleted"
RELATION = "_pgtide_relation"  # which partition holds the row, by relation id

_ATTNUM = re.compile(r"pgtide attnum (\d+)")


@dataclass(frozen=True)
class TargetColumn:
    """A column of a lake table."""

    name: str
    type: DataType
    attnum: int | None = None  # None: pgtide's own, or unknown at the source

    @property
    def comment(self) -> str:
        return f"pgtide attnum {self.attnum}" if self.attnum is not None else ""

    @property
    def field(self) -> StructField:
        metadata = {"comment": self.comment} if self.comment else {}
        return StructField(self.name, self.type, True, metadata)


def existing_columns(schema: StructType) -> list[TargetColumn]:
    """The columns of a table as it is."""
    columns = []
    for field in schema.fields:
        match = _ATTNUM.fullmatch(field.metadata.get("comment", ""))
        columns.append(TargetColumn(field.name, field.dataType, int(match[1]) if match else None))
    return columns


def earlier(at: Position) -> Column:
    """Whether a row of a lake table is of an event before this one."""
    return before(at, (F.col(LSN), F.col(SEQ)))


def comparable(value: Column, kind: DataType) -> Column:
    """A value that Spark compares: not maps, whose entries have no order."""
    if isinstance(kind, MapType):
        return F.array_sort(F.map_entries(value))
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, MapType):
        return F.transform(value, lambda item: F.array_sort(F.map_entries(item)))
    return value
