"""Types of a history's columns: the source's own where the target knows them, else text.

Of a domain it is the type below it: a history has no constraints, and a value that was not sent
is NULL. Rows of a table are texts: what has the name here is not that table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import types as t

from pgtide import oids
from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Column
from pgtide.sinks.postgres.stages import NAMES_OF_OBJECTS

_KNOWN = f"""
SELECT w.name, w.oid, w.typmod,
       CASE WHEN w.oid < {oids.FIRST_USER_OID} THEN
                (SELECT format_type(t.oid, w.typmod) FROM pg_catalog.pg_type t
                 WHERE t.oid = w.oid::oid)
            WHEN w.name <> '' THEN
                (SELECT w.name FROM pg_catalog.pg_type t
                 WHERE t.oid = to_regtype(w.name) AND t.typtype <> 'd' AND NOT EXISTS (
                     SELECT FROM pg_catalog.pg_type e JOIN pg_catalog.pg_class c
                         ON c.oid = e.typrelid AND c.relkind <> 'c'
                     WHERE e.oid IN (t.oid, t.typelem)))
       END
FROM ROWS FROM (unnest(%s::text[]), unnest(%s::bigint[]), unnest(%s::int[]))
     AS w(name, oid, typmod)
"""
_COMPUTED: dict[type[t.DataType], tuple[int, str]] = {
    t.BooleanType: (oids.BOOL, "boolean"),
    t.ByteType: (oids.INT2, "smallint"),
    t.ShortType: (oids.INT2, "smallint"),
    t.IntegerType: (oids.INT4, "integer"),
    t.LongType: (oids.INT8, "bigint"),
    t.FloatType: (oids.FLOAT4, "real"),
    t.DoubleType: (oids.FLOAT8, "double precision"),
    t.DateType: (oids.DATE, "date"),
    t.TimestampNTZType: (oids.TIMESTAMP, "timestamp without time zone"),
    t.TimestampType: (oids.TIMESTAMPTZ, "timestamp with time zone"),
    t.BinaryType: (oids.BYTEA, "bytea"),
}

Told: TypeAlias = tuple[str, int, int]
"""A type as a shape tells it: name, oid, modifier."""


@dataclass(frozen=True)
class ValueType:
    """The type of a column on both sides."""

    source: str  # as the source calls it: another one is a change of the column
    here: str  # as the target has it
    oid: int = oids.TEXT  # of what every server knows; text for all others


def read_types(connection: SqlConnection, columns: Iterable[Column]) -> dict[Told, ValueType]:
    """What the target makes of the types of columns."""
    wanted = sorted({told(column) for column in columns})
    arrays = [[one[part] for one in wanted] for part in range(3)]
    found = connection.execute(_KNOWN.encode(), arrays).fetchall()
    return {
        (name, oid, typmod): _value_type((name, oid, typmod), here)
        for name, oid, typmod, here in found
    }


def told(column: Column) -> Told:
    """What a shape says of a column's type."""
    if column.base_oid:
        return column.type_name, column.base_oid, column.base_typmod
    if (column.element_oid or column.type_oid) in NAMES_OF_OBJECTS:
        return "text", oids.TEXT, -1  # what they name need not be there
    return column.type_name, column.type_oid, column.typmod


def _value_type(wanted: Told, here: str | None) -> ValueType:
    name, oid, _ = wanted
    if oid < oids.FIRST_USER_OID and here is not None:
        return ValueType(here, here, oid)
    return ValueType(name or f"type {oid}", here or "text")


def type_of(column: Column, known: Mapping[Told, ValueType]) -> ValueType:
    """The type of a column that no rule has changed."""
    return known[told(column)]


def computed_type(kind: t.DataType) -> ValueType:
    """The type of a column that a rule has made."""
    if isinstance(kind, t.DecimalType):
        name = f"numeric({kind.precision},{kind.scale})"
        return ValueType(name, name, oids.NUMERIC)
    oid, name = _COMPUTED.get(type(kind), (oids.TEXT, "text"))
    return ValueType(name, name, oid)
