"""SQL expressions over a row's cells.

An expression is text and cells are columns, so the text becomes the body of a
lambda whose variables are the cells: Spark resolves names as it does anywhere,
and nothing but the row's own columns can be named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide.errors import ConfigError
from pgtide.rules.cells import Cell

_ROW = "pgtide_row"
_TOKEN = re.compile(
    r"""
      '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | --[^\n]* | /\*.*?\*/
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<plain>[A-Za-z_]\w*) (?!\s*\() (?![A-Za-z0-9_])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def references(sql: str, names: Sequence[str]) -> list[str]:
    """The columns that an expression may refer to; as in Spark, case does not matter."""
    found = {
        (token["plain"] or token["quoted"].replace("``", "`")).lower()
        for token in _TOKEN.finditer(sql)
        if token["plain"] or token["quoted"]
    }
    return [name for name in names if name.lower() in found]


def expression(sql: str, cells: Sequence[Cell]) -> tuple[Column, t.DataType]:
    """The expression's value and type; raises ConfigError when it means nothing here."""
    named = {name: f"pgtide_{at}" for at, name in enumerate(cell.name for cell in cells)}
    chosen = [cell for cell in cells if cell.name in references(sql, list(named))]
    if len({cell.name.lower() for cell in chosen}) < len(chosen):
        raise ConfigError("its SQL names columns that differ by case only", hint="rename one first")
    values = [cell.value for cell in chosen]
    return _over(sql, values, named, chosen), _type(sql, named, chosen)


def _over(sql: str, values: list[Column], named: dict[str, str], chosen: list[Cell]) -> Column:
    body = f"({_spelled(sql, named)}\n)"  # on a line of its own: the text may end in a comment
    for cell in chosen:
        field = named[cell.name]
        variable = cell.name if _PLAIN.fullmatch(cell.name) else field
        body = f"transform(array({_ROW}.{field}), `{variable}` -> {body})[0]"
    fields = [value.alias(named[cell.name]) for value, cell in zip(values, chosen, strict=True)]
    row = F.array(F.struct(*fields) if fields else F.lit(0))
    return F.call_function("transform", row, F.expr(f"{_ROW} -> {body}")).getItem(0)


def _spelled(sql: str, named: dict[str, str]) -> str:
    """With names that no variable can have replaced by ones that can."""

    def replace(token: re.Match[str]) -> str:
        name = (token["quoted"] or "").replace("``", "`")
        odd = name in named and not _PLAIN.fullmatch(name)
        return named[name] if odd else token[0]

    return _TOKEN.sub(replace, sql)


def _type(sql: str, named: dict[str, str], chosen: list[Cell]) -> t.DataType:
    """By asking Spark about a frame that has these columns and no rows."""
    spark = SparkSession.active()
    empty = t.StructType([t.StructField(named[cell.name], cell.type) for cell in chosen])
    values = [F.col(field.name) for field in empty]
    try:
        frame = spark.createDataFrame([], empty)
        return frame.select(_over(sql, values, named, chosen)).schema[0].dataType
    except PySparkException as error:
        lines = str(error).strip().splitlines()
        raise ConfigError(
            "its SQL cannot be used",
            detail=lines[0] if lines else "",
            hint="write an expression of Spark SQL over columns of the row, at this point of "
            "the rules",
        ) from None
