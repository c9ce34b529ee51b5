"""Codecs: from a value's Postgres text to a typed Spark column, exactly or not at all.

A codec is a strict guard on the text, then ``try_cast``. A bare cast takes texts that Postgres
does not print (``' 12 '``, ``1d``, ``2024``), reads ``0044-03-15 BC`` as the year 44 and rounds
digits away. A text without a value is *unrepresentable*: ``decode`` gives NULL there, and
``unrepresentable`` tells it from NULL. Nothing depends on the session's time zone or on ANSI mode,
and nothing ever raises. ``docs/TYPES.md`` lists what becomes of each type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from pgtide import oids, shape
from pgtide.config.unbounded_numeric import MAX_PRECISION
from pgtide.spark.array_text import decode_array, decode_hstore
from pgtide.spark.sql_text import Sql, case, literal, pattern, type_name

MAX_OID = 2**32 - 1
BYTEA_PREFIX = "\\x"

# All without backslashes, see ``pattern``. The end is where no character is: $ also matches before
# a line feed there. Postgres knows no year 0.
_END = "(?!(?s:.))"
_TWO = "[0-9]{2}"
_DATE = f"(?!0000)[0-9]{{4}}-{_TWO}-{_TWO}"
_TIMESTAMP = f"{_DATE} {_TWO}:{_TWO}:{_TWO}(?:[.][0-9]{{1,6}})?"
_FINITE = "-?[0-9]{1,400}(?:[.][0-9]{1,400})?(?:e[+-][0-9]{1,3})?"


@dataclass(frozen=True, slots=True)
class Codec:
    """How texts of one type become values."""

    spark_type: DataType
    decode: Callable[[Sql], Sql]
    """The typed value; NULL where the text is NULL or has no value."""
    total: bool = False
    """Whether every value of the type has one in Spark."""
    any_text: bool = False
    """Whether every text has a value, also one that is not of the type."""

    @property
    def comparable(self) -> bool:
        """Whether Spark can tell if two values are equal, and which is less: not of maps."""
        kind = self.spark_type
        while isinstance(kind, ArrayType):
            kind = kind.elementType
        return not isinstance(kind, MapType)

    def unrepresentable(self, text: Sql) -> Sql:
        """True where there is a text and it has no value; never NULL."""
        if self.any_text:
            return Sql("false")
        return Sql(f"({text} IS NOT NULL AND {self.decode(text)} IS NULL)")


def codec_for(column: shape.Column, unbounded: DecimalType | None = None) -> Codec:
    """The codec of a column; ``TEXT`` for a type that has no counterpart in Spark.

    ``unbounded``: what a ``numeric`` without a usable precision is read as, if not as text.
    """
    oid, typmod = column.type_oid, column.typmod
    if column.base_oid:
        oid, typmod = column.base_oid, column.base_typmod
    # Logs from before arrays were described: the built-in ones are known anyway.
    element = column.element_oid or oids.ARRAY_ELEMENTS.get(oid, 0)
    if element:
        type_name = column.type_name.removesuffix("[]")
        return _array(_scalar(element, typmod, type_name, unbounded))
    return _scalar(oid, typmod, column.type_name, unbounded)


def _scalar(oid: int, typmod: int, type_name: str, unbounded: DecimalType | None) -> Codec:
    if oid == oids.NUMERIC:
        kind = declared_decimal(typmod) or unbounded
        return TEXT if kind is None else _decimal(kind.precision, kind.scale)
    # An extension's type has another oid in every database.
    if oid >= oids.FIRST_USER_OID and type_name.rpartition(".")[2] == "hstore":
        return HSTORE
    return _BY_OID.get(oid, TEXT)


@cache
def _array(element: Codec) -> Codec:
    bad = None if element.any_text else element.unrepresentable
    return Codec(
        ArrayType(element.spark_type), lambda text: decode_array(text, element.decode, bad)
    )


def declared_decimal(typmod: int) -> DecimalType | None:
    """The decimal that holds every number of ``numeric(p, s)``; None where there is none."""
    precision, scale = oids.numeric_precision(typmod), oids.numeric_scale(typmod)
    if precision is None or scale is None:
        return None
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return DecimalType(precision, scale) if precision <= MAX_PRECISION else None


@cache
def _decimal(precision: int, scale: int) -> Codec:
    """Numbers that a decimal holds exactly: behind its last digit there are zeros at most."""
    digits = f"[0-9]{{1,{scale}}}+0*+" if scale else "0++"
    return _guarded(DecimalType(precision, scale), f"-?[0-9]{{1,{precision}}}+(?:[.]{digits})?")


def _guarded(spark_type: DataType, regex: str) -> Codec:
    """Texts that fit a pattern, cast."""
    whole = pattern(f"^(?:{regex}){_END}")
    return Codec(
        spark_type, lambda text: case(f"{text} RLIKE {whole}", _try_cast(text, spark_type))
    )


def _integer(spark_type: DataType) -> Codec:
    """Texts that are what Spark prints for the number they are cast to: cheaper than a pattern."""

    def decode(text: Sql) -> Sql:
        value = _try_cast(text, spark_type)
        return case(f"CAST({value} AS STRING) = {text}", value)

    return Codec(spark_type, decode, total=True)


def _oid() -> Codec:
    def decode(text: Sql) -> Sql:
        value = _try_cast(text, LongType())
        fits = f"CAST({value} AS STRING) = {text} AND {value} BETWEEN 0 AND {MAX_OID}"
        return case(fits, value)

    return Codec(LongType(), decode, total=True)


def _float(spark_type: DataType) -> Codec:
    finite = pattern(f"^{_FINITE}{_END}")

    def decode(text: Sql) -> Sql:
        value = _try_cast(text, spark_type)
        infinity = _try_cast(literal("Infinity"), spark_type)
        # Too large a number would be cast to infinity, too small a one to zero.
        exact = f"abs({value}) < {infinity} AND ({value} != 0 OR {text} IN ('0', '-0'))"
        named = f"{text} IN ('NaN', 'Infinity', '-Infinity')"
        return case(f"({text} RLIKE {finite} AND {exact}) OR {named}", value)

    return Codec(spark_type, decode, total=True)


def _boolean(text: Sql) -> Sql:
    return Sql(f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END")


def _bytea(text: Sql) -> Sql:
    # unhex() would take an odd number of digits, and a cast the text's own bytes.
    hexadecimal = f"startswith({text}, {literal(BYTEA_PREFIX)}) AND octet_length({text}) % 2 = 0"
    return case(hexadecimal, f"unhex(substr({text}, {len(BYTEA_PREFIX) + 1}))")


def _try_cast(text: Sql, spark_type: DataType) -> Sql:
    return Sql(f"try_cast({text} AS {type_name(spark_type)})")


TEXT = Codec(StringType(), lambda text: text, total=True, any_text=True)
HSTORE = Codec(MapType(StringType(), StringType()), decode_hstore, total=True)

_BY_OID = {
    oids.BOOL: Codec(BooleanType(), _boolean, total=True),
    oids.INT2: _integer(ShortType()),
    oids.INT4: _integer(IntegerType()),
    oids.INT8: _integer(LongType()),
    oids.OID: _oid(),
    oids.FLOAT4: _float(FloatType()),
    oids.FLOAT8: _float(DoubleType()),
    oids.DATE: _guarded(DateType(), _DATE),
    oids.TIMESTAMP: _guarded(TimestampNTZType(), _TIMESTAMP),
    oids.TIMESTAMPTZ: _guarded(TimestampType(), f"{_TIMESTAMP}[+]00"),
    oids.BYTEA: Codec(BinaryType(), _bytea, total=True),
}
