"""Filters as Spark columns: true or false wherever the value was sent, else NULL.

Values that a Spark type cannot hold (NaN and infinity of ``numeric``, dates BC or
past the year 9999) are judged by their Postgres text, so a filter never mistakes
them for NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide.config.rules import Filter
from pgtide.rules.cells import Cell
from pgtide.rules.kinds import Kind, is_padded
from pgtide.rules.values import comparable, number

ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda left, right: left == right,
    "ne": lambda left, right: left != right,
    "gt": lambda left, right: left > right,
    "lt": lambda left, right: left < right,
    "gte": lambda left, right: left >= right,
    "lte": lambda left, right: left <= right,
}
"""The operators that compare two values, Python's as well as Spark's."""

_EXACT = Context(prec=2000)
"""Digits enough for any value; Python's default context would round to 28."""
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)


def comparison(wanted: Filter, cell: Cell) -> Column:
    """Whether a row is kept, as far as this one comparison goes; NULL for NULL."""
    operator = wanted.operator
    if operator == "is_null":
        return cell.text.isNotNull() if wanted.value == "false" else cell.text.isNull()
    if operator == "contains":
        text = F.rtrim(cell.text) if is_padded(cell.type_oid) else cell.text
        return text.contains(wanted.values[0])
    if operator == "in":
        return reduce(Column.__or__, (_compare("eq", cell, value) for value in wanted.values))
    assert operator is not None, "a filter has an operator or SQL"
    return _compare(operator, cell, wanted.values[0])


def _compare(operator: str, cell: Cell, value: str) -> Column:
    match cell.kind:
        case Kind.NUMBER:
            return _compare_number(operator, cell, number(value))
        case Kind.FLOAT:
            # Of the text: a real 0.1 is what people mean by 0.1, its float is not.
            return _ordered(operator, cell.text.try_cast("double"), F.lit(float(number(value))))
        case Kind.BOOLEAN:
            return _ordered(operator, cell.value, F.lit(value == "true"))
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ as kind:
            return _compare_moment(operator, cell, comparable(kind, value))
        case kind:
            padded = is_padded(cell.type_oid)
            text = F.rtrim(cell.text) if padded else cell.text
            wanted = value.rstrip(" ") if padded else comparable(kind, value)
            return _ordered(operator, text, F.lit(wanted))


def _compare_moment(operator: str, cell: Cell, wanted: str) -> Column:
    """ISO texts in UTC order as their values do, within the years 1 to 9999."""
    text = cell.text
    early = (text == "-infinity") | text.endswith(" BC")
    late = (text == "infinity") | text.rlike(r"^\d{5,}-")  # asked after ``early``
    plain = F.regexp_replace(text, r"\+00$", "")
    if cell.kind is Kind.DATE and " " in wanted:
        plain = F.concat(plain, F.lit(" 00:00:00"))
    return (
        F.when(early, ORDER[operator](0, 1))
        .when(late, ORDER[operator](1, 0))
        .otherwise(_ordered(operator, plain, F.lit(wanted)))
    )


def _ordered(operator: str, left: Column, right: Column) -> Column:
    result: Column = ORDER[operator](left, right)
    return result


def _compare_number(operator: str, cell: Cell, wanted: Decimal) -> Column:
    if isinstance(cell.type, _INTEGERS):
        return _compare_scaled(operator, cell.value, wanted, t.DecimalType(19, 0))
    if isinstance(cell.type, t.DecimalType) and not (cell.any_number and cell.type_oid):
        # First by the text: reading a value that the type cannot hold may be an error.
        typed = _compare_scaled(operator, cell.value, wanted, cell.type)
        return F.coalesce(_beyond(operator, cell.text), typed)
    return F.coalesce(_beyond(operator, cell.text), _compare_digits(operator, cell.text, wanted))


def _beyond(operator: str, text: Column) -> Column:
    """For NaN, which Postgres sorts last, and the infinities; NULL for numbers."""
    return F.when(text.isin("NaN", "Infinity"), ORDER[operator](1, 0)).when(
        text == "-Infinity", ORDER[operator](0, 1)
    )


def _compare_scaled(operator: str, value: Column, wanted: Decimal, type_: t.DecimalType) -> Column:
    """Against the nearest number that the type can hold, on the side where nothing changes."""
    step = Decimal(1).scaleb(-type_.scale)
    limit = Decimal(10) ** (type_.precision - type_.scale)
    if wanted.copy_abs() >= limit:
        return F.when(value.isNotNull(), ORDER[operator](0, wanted))
    down = wanted.quantize(step, ROUND_FLOOR, _EXACT)
    if down != wanted and operator in ("eq", "ne"):
        return F.when(value.isNotNull(), operator == "ne")
    up = wanted.quantize(step, ROUND_CEILING, _EXACT)
    bound = up if operator in ("gte", "lt") else down
    literal = F.lit(f"{bound:f}").cast(t.DecimalType(38, type_.scale))
    return _ordered(operator, value, literal)


def _compare_digits(operator: str, text: Column, wanted: Decimal) -> Column:
    """Numbers of any length, by their digits: ``numeric`` without precision, whatever its type."""
    negative = text.startswith("-")
    unsigned = F.regexp_replace(text, "^-", "")
    here, there = _magnitude(unsigned), _magnitude(F.lit(f"{wanted.copy_abs():f}"))
    same = _ordered(operator, *((here, there) if wanted >= 0 else (there, here)))
    other = ORDER[operator](0, 1) if wanted >= 0 else ORDER[operator](1, 0)
    return F.when(negative if wanted >= 0 else ~negative, other).when(text.isNotNull(), same)


def _magnitude(unsigned: Column) -> Column:
    """Structs that order as the numbers do: length before the point, digits, digits behind."""
    parts = F.split(unsigned, r"\.")
    whole = parts.getItem(0)
    fraction = F.regexp_replace(F.coalesce(F.get(parts, F.lit(1)), F.lit("")), "0+$", "")
    return F.struct(
        F.length(whole).alias("length"), whole.alias("whole"), fraction.alias("fraction")
    )
