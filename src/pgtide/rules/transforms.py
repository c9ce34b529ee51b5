"""Transformations as Spark columns. NULL stays NULL, what was not sent stays so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pyarrow as pa
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide import oids
from pgtide.config.rules import Transform
from pgtide.errors import ConfigError
from pgtide.rules.cells import Cell, all_sent
from pgtide.rules.kinds import is_padded
from pgtide.rules.postgres_text import postgres_text
from pgtide.rules.regex import translate
from pgtide.rules.sql import expression, references


def transformed(
    transform: Transform, cell: Cell, cells: Sequence[Cell], when: Column | None
) -> Cell:
    """The cell after the rule, where ``when`` is true; None: always."""
    if transform.null is not None:
        new = _nothing(cell)
    elif transform.sql is not None:
        new = _computed(transform.sql, cell, cells)
    else:
        text = _new_text(transform, cell)
        new = replace(cell, type=t.StringType(), value=text, text=text, type_oid=oids.TEXT)
        new = replace(new, salted=cell.salted or transform.hash is not None)
    return new if when is None else _either(when, new, cell)


def _either(when: Column, new: Cell, old: Cell) -> Cell:
    if isinstance(new.type, t.StringType):
        value = old.text
    elif new.type == old.type:
        value = old.value
    else:
        raise ConfigError(
            f"its SQL gives {new.type.simpleString()}, the column has {old.type.simpleString()}",
            detail="A column has one type, whatever the operation.",
            hint="cast the result, or leave operations out",
        )
    sent = None
    if not (new.sent is None and old.sent is None):
        sent = F.when(when, _or_true(new.sent)).otherwise(_or_true(old.sent))
    return replace(
        new,
        value=F.when(when, new.value).otherwise(value),
        text=F.when(when, new.text).otherwise(old.text),
        sent=sent,
        salted=new.salted or old.salted,
    )


def _or_true(sent: Column | None) -> Column:
    return F.lit(True) if sent is None else sent


def _new_text(transform: Transform, cell: Cell) -> Column:
    text = F.rtrim(cell.text) if is_padded(cell.type_oid) else cell.text
    if transform.mask is not None:
        return _masked(text, transform.mask.char)
    if transform.regex is not None:
        regex = translate(transform.regex.pattern, transform.regex.replace)
        _try_pattern(regex.pattern)
        return F.regexp_replace(text, regex.pattern, regex.replacement)
    if transform.hash is not None:
        return F.sha2(F.concat(_unprinted(transform.hash.salt), text).cast("binary"), 256)
    if transform.replace is not None:
        return F.replace(text, F.lit(transform.replace.from_), F.lit(transform.replace.to))
    assert transform.truncate is not None, "a transform has one of the seven ways"
    return F.substring(text, 1, transform.truncate.length)


def _masked(text: Column, char: str) -> Column:
    inner = F.length(text) - 2
    middle = F.repeat(F.lit(char), inner)
    whole = F.concat(F.substring(text, 1, 1), middle, F.substring(text, -1, 1))
    return F.when(inner > 0, whole).otherwise(text)


def _unprinted(salt: SecretStr) -> Column:
    """The salt as a subquery over a local row: plans print literals, but not such rows.

    From Arrow, because a query over literals would be folded back into one.
    """
    row = pa.table({"salt": [salt.get_secret_value()]})
    return SparkSession.active().createDataFrame(row).scalar()


def _nothing(cell: Cell) -> Cell:
    null = F.lit(None)
    text = null.cast("string")
    return replace(cell, value=null.cast(cell.type), text=text, sent=None, salted=False)


def _computed(sql: str, cell: Cell, cells: Sequence[Cell]) -> Cell:
    """Not sent where any value it is computed from was not."""
    names = references(sql, [other.name for other in cells])
    value, type_ = expression(sql, cells)
    sent = all_sent(other for other in cells if other.name in names)
    text = postgres_text(value, type_)
    new = replace(cell, type=type_, value=value, text=text, sent=sent, type_oid=0)
    return replace(new, salted=False)


@cache
def _try_pattern(pattern: str) -> None:
    """Have Java compile it now: in a task the error would come late, and again and again."""
    try:
        row = SparkSession.active().sql("SELECT 1")
        row.select(F.regexp_replace(F.lit(""), pattern, "")).collect()
    except PySparkException:
        raise ConfigError(
            "Java does not compile its pattern", hint="see docs/RULES.md, Regular expressions"
        ) from None
