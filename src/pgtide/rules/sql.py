"""SQL expressions over a row's cells.

An expression is text and cells are columns, so the text becomes the body of a
lambda whose variables are the cells: Spark resolves names as it does anywhere,
and nothing but the row's own columns can be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide.errors import ConfigError
from pgtide.rules.cells import Cell
from pgtide.spark.sql_text import type_name

_ROW = "pgtide_row"
_ASKED = "pgtide_asked"  # the column of the frame that Spark is asked about: no name of a user's
_TOKEN = re.compile(
    r"""
      '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | --[^\n]* | /\*.*?\*/
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<plain>[A-Za-z_]\w*) (?!\s*\() (?![A-Za-z0-9_])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_answers: ContextVar[dict[str, t.DataType | str]] = ContextVar("answers")
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
    used = references(sql, [cell.name for cell in cells])
    chosen = [cell for cell in cells if cell.name in used]
    named = {cell.name: f"pgtide_{at}" for at, cell in enumerate(chosen)}
    if len({cell.name.lower() for cell in chosen}) < len(chosen):
        raise ConfigError("its SQL names columns that differ by case only", hint="rename one first")
    for cell in chosen:
        if cell.salted:
            # The salt is a subquery, which Spark does not take in a lambda.
            raise ConfigError(
                f"its SQL reads {cell.name}, which a rule before it hashed",
                hint="put the SQL before the hash",
            )
    values = [cell.value for cell in chosen]
    return _over(sql, values, named, chosen), _type(sql, named, chosen)


def _over(sql: str, values: list[Column], named: dict[str, str], chosen: list[Cell]) -> Column:
    fields = [value.alias(named[cell.name]) for value, cell in zip(values, chosen, strict=True)]
    row = F.array(F.struct(*fields) if fields else F.lit(0))
    body = _body(sql, named, chosen)
    return F.call_function("transform", row, F.expr(f"{_ROW} -> {body}")).getItem(0)


def _body(sql: str, named: dict[str, str], chosen: list[Cell]) -> str:
    """The expression over the fields of a row."""
    body = f"({_spelled(sql, named)}\n)"  # on a line of its own: the text may end in a comment
    for cell in chosen:
        field = named[cell.name]
        variable = cell.name if _PLAIN.fullmatch(cell.name) else field
        body = f"transform(array({_ROW}.{field}), `{variable}` -> {body})[0]"
    return body


def _spelled(sql: str, named: dict[str, str]) -> str:
    """With names that no variable can have replaced by ones that can."""

    def replace(token: re.Match[str]) -> str:
        name = (token["quoted"] or "").replace("``", "`")
        odd = name in named and not _PLAIN.fullmatch(name)
        return named[name] if odd else token[0]

    return _TOKEN.sub(replace, sql)


def _type(sql: str, named: dict[str, str], chosen: list[Cell]) -> t.DataType:
    """By asking Spark about a row that has these columns, in one question.

    Their values are no constants to Spark: some functions take nothing else.
    """
    fields = [
        f"'{named[cell.name]}', IF({_ASKED} < 0, CAST(NULL AS {type_name(cell.type)}), NULL)"
        for cell in chosen
    ]
    row = f"named_struct({', '.join(fields)})" if fields else "0"
    asked = f"transform(array({row}), {_ROW} -> {_body(sql, named, chosen)})[0]"
    known = _answers.get({})
    answer = known[asked] if asked in known else _ask(asked)
    known[asked] = answer
    if isinstance(answer, t.DataType):
        return answer
    raise ConfigError(
        "its SQL cannot be used",
        detail=answer,
        hint="write an expression of Spark SQL over columns of the row, at this point of the rules",
    )


def _ask(asked: str) -> t.DataType | str:
    """The type of an expression, or why it has none."""
    try:
        frame = SparkSession.active().range(0).toDF(_ASKED)
        return frame.selectExpr(asked).schema[0].dataType
    except PySparkException as error:
        return next(iter(str(error).strip().splitlines()), "Spark does not say why.")


@contextmanager
def asking_once() -> Iterator[None]:
    """While this lasts, what Spark said of an expression and its columns' types is remembered.

    Not longer: it hinges on settings of the session.
    """
    token = _answers.set({})
    try:
        yield
    finally:
        _answers.reset(token)
