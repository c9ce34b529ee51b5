"""One value, the same bytes on both sides: pairs of expressions for Postgres and Spark.

Postgres makes a row's bytes with ``record_send(ROW(…))``: the number of columns, then of each
the type's oid, the length and the value in binary, with length -1 for NULL. That is unambiguous
whatever the values hold, exact for floating point numbers, and free of time zones. Spark builds
the same bytes of the mirror's typed columns. Types that a mirror holds as text are sent as their
text; so are decimals, whose digits count.

Expressions for Spark need a session with ANSI mode off (integers as bytes) and time zone UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import sql
from pyspark.sql import types as t

from pgtide import oids, shape
from pgtide.spark.codecs import declared_decimal
from pgtide.spark.layout import Policy
from pgtide.spark.sql_text import Sql, quoted
from pgtide.spark.static_calls import DOUBLE_BITS, FLOAT_BITS

BYTEA, TEXT = oids.BYTEA, oids.TEXT
BPCHAR, CHAR, INET, CIDR, XML = 1042, 18, 869, 650, 142
_NO_LENGTH = 2**32 - 1
_EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01, where Postgres counts from
_EPOCH_US = _EPOCH_DAYS * 86_400 * 1_000_000
# Their casts to text are not what Postgres prints.
_PRINTED = frozenset({oids.BOOL, BPCHAR, CHAR, INET, CIDR, XML})
_INTEGERS: dict[int, tuple[str, int, type[t.DataType]]] = {
    oids.INT2: ("int2", 2, t.ShortType),
    oids.INT4: ("int4", 4, t.IntegerType),
    oids.INT8: ("int8", 8, t.LongType),
}


@dataclass(frozen=True)
class Canonical:
    """How a value becomes bytes on either side."""

    oid: int  # of the type that Postgres sends
    size: int | None  # bytes; None: it varies
    source: str  # SQL of Postgres
    value: Sql  # SQL of Spark: the value, or a column that ``made`` makes of it
    as_binary: Sql  # of ``value``: NULL where that is
    bits: tuple[str, str, str] | None = None  # Java's method whose result is read
    made: Sql | None = None  # what takes time to make, and is needed twice

    @property
    def pieces(self) -> list[str]:
        """What Postgres sends of the value inside of a row, in Spark. None of them is NULL.

        Few and flat: each piece that is put together before is an array that Java has to make.
        """
        oid = f"{self.oid:08X}"
        binary = f"coalesce({self.as_binary}, X'')"
        if self.size is None:
            # Both as one number of eight bytes, and -1 in its lower half for NULL.
            length = f"coalesce(CAST(octet_length({self.value}) AS BIGINT), {_NO_LENGTH}L)"
            return [f"CAST({self.oid << 32}L + {length} AS BINARY)", binary]
        there = f"X'{oid}{self.size:08X}'"
        return [f"IF({self.value} IS NULL, X'{oid}FFFFFFFF', {there})", binary]


def identifier(name: str) -> str:
    """A name in Postgres."""
    return sql.Identifier(name).as_string(None)


def bits_name(name: str) -> str:
    """The column that holds the bits of a floating point column."""
    return f"_pgtide_bits_{name}"


def made_name(name: str) -> str:
    """The column that holds what is made of a column."""
    return f"_pgtide_made_{name}"


def row_source(values: list[Canonical]) -> str:
    """SQL of Postgres: the bytes of a row."""
    return row_bytes([value.source for value in values])


def row_bytes(values: Sequence[str]) -> str:
    """The same of values that are given as SQL of Postgres."""
    return f"record_send(ROW({', '.join(values)}))"


def row_target(values: list[Canonical]) -> Sql:
    """SQL of Spark: the same bytes."""
    pieces = [piece for value in values for piece in value.pieces]
    return Sql(f"concat(X'{len(values):08X}', {', '.join(pieces)})")


def canonical(
    column: shape.Column, kind: t.DataType, name: str, policy: Policy
) -> Canonical | None:
    """A column of the source that a mirror holds as ``kind`` under ``name``; None: no way known."""
    oid = column.base_oid or column.type_oid
    source, target = identifier(column.name), quoted(name)
    element = column.element_oid or oids.ARRAY_ELEMENTS.get(oid, 0)
    if isinstance(kind, t.ArrayType) and element:
        return _array(column, element, kind.elementType, name, policy)
    if isinstance(kind, t.MapType):
        return _hstore(column, source, name)
    return _scalar(column, oid, kind, source, target, name, policy)


def _scalar(
    column: shape.Column,
    oid: int,
    kind: t.DataType,
    source: str,
    target: Sql,
    name: str,
    policy: Policy,
) -> Canonical | None:
    if isinstance(kind, t.StringType):
        return _text(as_text(oid, source), target)
    if oid in _INTEGERS and isinstance(kind, _INTEGERS[oid][2]):
        type_name, size, _ = _INTEGERS[oid]
        return Canonical(oid, size, f"{source}::{type_name}", target, _binary(target))
    if oid == oids.OID and isinstance(kind, t.LongType):
        return Canonical(oids.INT8, 8, f"{source}::int8", target, _binary(target))
    if oid == oids.BOOL and isinstance(kind, t.BooleanType):
        flag = Sql(f"CASE {target} WHEN true THEN X'01' WHEN false THEN X'00' END")
        return Canonical(oid, 1, f"{source}::bool", target, flag)
    if oid == oids.FLOAT8 and isinstance(kind, t.DoubleType):
        return _float(oid, 8, "float8", source, name, DOUBLE_BITS)
    if oid == oids.FLOAT4 and isinstance(kind, t.FloatType):
        return _float(oid, 4, "float4", source, name, FLOAT_BITS)
    if oid == oids.NUMERIC and isinstance(kind, t.DecimalType):
        text = _digits(column, kind, source, policy)
        # By try_cast, which never writes an exponent.
        printed = Sql(f"try_cast({target} AS STRING)")
        if target == quoted(name):
            return replace(_text(text, quoted(made_name(name))), made=printed)
        return _text(text, printed)  # an item of an array
    if oid == oids.BYTEA and isinstance(kind, t.BinaryType):
        return Canonical(BYTEA, None, f"{source}::bytea", target, target)
    return _moment(oid, kind, source, target, policy)


def _digits(column: shape.Column, kind: t.DecimalType, source: str, policy: Policy) -> str:
    """A number as a decimal of the mirror prints it, if that holds it."""
    typmod = column.base_typmod if column.base_oid else column.typmod
    if declared_decimal(typmod) == kind:
        return _held(policy, f"{source} <> 'NaN'", f"{source}::text")
    # As many digits behind the point as the decimal has, and none that it does not have.
    cut = f"trunc({source}, {kind.scale})"
    shown = f"CASE WHEN {source} = {cut} THEN {cut} ELSE {source} END::text"
    limit = f"'1e{kind.precision - kind.scale}'::numeric"
    return _held(policy, f"{source} = {cut} AND abs({source}) < {limit}", shown)


def _moment(
    oid: int, kind: t.DataType, source: str, target: Sql, policy: Policy
) -> Canonical | None:
    if oid == oids.DATE and isinstance(kind, t.DateType):
        fits = f"{source} BETWEEN '0001-01-01' AND '9999-12-31'"
        days = _binary(Sql(f"(unix_date({target}) - {_EPOCH_DAYS})"))
        return Canonical(oid, 4, _held(policy, fits, f"{source}::date"), target, days)
    for known, name, spark_type in (
        (oids.TIMESTAMP, "timestamp", t.TimestampNTZType),
        (oids.TIMESTAMPTZ, "timestamptz", t.TimestampType),
    ):
        if oid == known and isinstance(kind, spark_type):
            fits = f"{source} >= '0001-01-01' AND {source} < '10000-01-01'"
            since = f"(unix_micros(CAST({target} AS TIMESTAMP)) - {_EPOCH_US})"
            held = _held(policy, fits, f"{source}::{name}")
            return Canonical(oid, 8, held, target, _binary(Sql(since)))
    return None


def _array(
    column: shape.Column, element: int, kind: t.DataType, name: str, policy: Policy
) -> Canonical | None:
    """Each element as a row of one column, in order."""
    if policy == "null":
        return None  # which arrays a mirror could not hold is not told by Postgres
    item = Sql("item_")
    value = _scalar(column, element, kind, "u.item", item, name, policy)
    if value is None:
        return None
    sent = f"string_agg({row_source([value])}, ''::bytea ORDER BY u.place)"
    array = identifier(column.name)
    inner = f"SELECT {sent} FROM unnest({array}) WITH ORDINALITY AS u(item, place)"
    source = f"CASE WHEN {array} IS NOT NULL THEN coalesce(({inner}), ''::bytea) END"
    items = quoted(name)
    if value.bits is not None:
        items, value = quoted(bits_name(name)), _of_bits(value, item)
    rows = f"transform({items}, {item} -> hex({row_target([value])}))"
    return _joined(source, name, rows, value.bits)


def _of_bits(value: Canonical, item: Sql) -> Canonical:
    return replace(value, value=item, as_binary=_binary(item))


def _joined(
    source: str, name: str, rows: str, bits: tuple[str, str, str] | None = None
) -> Canonical:
    """Rows as one value: an array of their bytes in hexadecimal."""
    made = quoted(made_name(name))
    joined = Sql(f"unhex(array_join({rows}, ''))")
    return Canonical(BYTEA, None, source, made, made, bits, joined)


def _hstore(column: shape.Column, source: str, name: str) -> Canonical:
    """Pairs by key: neither side's order means anything."""
    schema = column.type_name.rpartition(".")[0]
    each = f"{schema}.each" if schema else "each"
    sent = "string_agg(record_send(ROW(h.key, h.value)), ''::bytea ORDER BY h.key COLLATE \"C\")"
    inner = f"SELECT {sent} FROM {each}({source}) AS h"
    pair = [_text("", Sql(f"entry_.{side}")) for side in ("key", "value")]
    entries = f"array_sort(map_entries({quoted(name)}))"
    rows = f"transform({entries}, entry_ -> hex({row_target(pair)}))"
    sent = f"CASE WHEN {source} IS NOT NULL THEN coalesce(({inner}), ''::bytea) END"
    return _joined(sent, name, rows)


def _float(
    oid: int, size: int, type_name: str, source: str, name: str, bits: tuple[str, str, str]
) -> Canonical:
    # Postgres knows one NaN by value and prints it alike, whatever its bits; Java has one.
    number = f"{source}::{type_name}"
    one = f"CASE WHEN {source} = 'NaN' THEN 'NaN'::{type_name} ELSE {number} END"
    value = quoted(bits_name(name))
    return Canonical(oid, size, one, value, _binary(value), bits)


def _text(source: str, target: Sql) -> Canonical:
    return Canonical(TEXT, None, source, target, _binary(target))


def as_text(oid: int, source: str) -> str:
    """A value as Postgres prints it, which is what the log holds."""
    if oid in (TEXT, oids.VARCHAR):
        return f"{source}::text"
    if oid in _PRINTED or oid >= oids.FIRST_USER_OID:
        return f"CASE WHEN {source} IS DISTINCT FROM NULL THEN concat({source}) END"
    return f"{source}::text"


def _held(policy: Policy, fits: str, value: str) -> str:
    """Under ``null`` a value that the mirror's type cannot hold is NULL there."""
    return f"CASE WHEN {fits} THEN {value} END" if policy == "null" else value


def _binary(value: Sql) -> Sql:
    return Sql(f"CAST({value} AS BINARY)")
