"""The shape of rows after the rules: what they made of a table's names, columns and types."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import types as t

from pgtide import oids
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.shape import Column, Shape

# What a computed value is called in Postgres; its text is as Postgres prints that type.
_COMPUTED: dict[type[t.DataType], tuple[int, str]] = {
    t.BooleanType: (oids.BOOL, "boolean"),
    t.ShortType: (oids.INT2, "smallint"),
    t.IntegerType: (oids.INT4, "integer"),
    t.LongType: (oids.INT8, "bigint"),
    t.FloatType: (oids.FLOAT4, "real"),
    t.DoubleType: (oids.FLOAT8, "double precision"),
    t.DecimalType: (oids.NUMERIC, "numeric"),
    t.DateType: (oids.DATE, "date"),
    t.TimestampNTZType: (oids.TIMESTAMP, "timestamp without time zone"),
    t.TimestampType: (oids.TIMESTAMPTZ, "timestamp with time zone"),
    t.BinaryType: (oids.BYTEA, "bytea"),
}


def ruled_shape(shape: Shape, rules: TableRules, cells: list[Cell]) -> Shape:
    """The shape of rows after the rules: names, columns and types as they are then."""
    origin = {new: old for old, new in rules.names(c.name for c in shape.columns).items()}
    columns = {column.name: column for column in shape.columns}
    schema, table = rules.target
    return replace(
        shape,
        schema=schema,
        table=table,
        columns=tuple(_ruled_column(columns[origin[cell.name]], cell) for cell in cells),
    )


def _ruled_column(column: Column, cell: Cell) -> Column:
    column = replace(column, name=cell.name)
    if cell.type_oid == (column.base_oid or column.type_oid):
        return column
    oid, name = (cell.type_oid, "text") if cell.type_oid else _computed(cell.type)
    return replace(
        column, type_oid=oid, type_name=name, typmod=-1, base_oid=0, base_typmod=-1, element_oid=0
    )


def _computed(type_: t.DataType) -> tuple[int, str]:
    return _COMPUTED.get(type(type_), (oids.TEXT, "text"))
