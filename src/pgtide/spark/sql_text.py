"""Pieces of Spark SQL as text.

Expressions of many parts are written as text and handed over once: built from PySpark's columns,
each part is several calls into the JVM, a second for a few tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NewType

from pyspark.sql.types import DataType

Sql = NewType("Sql", str)
"""An expression that may stand where an operand may: a name, a call, or in parentheses."""

_INSTANT = re.compile(r"\btimestamp\b")
_PLAIN = re.compile(r"[A-Za-z0-9_ .,:;/+(){}-]*")


def quoted(name: str) -> Sql:
    """A column by its name, whatever characters that has."""
    return Sql("`" + name.replace("`", "``") + "`")


def literal(text: str) -> Sql:
    """A string; what is not plain as hexadecimal, for escapes depend on the session's settings."""
    if _PLAIN.fullmatch(text):
        return Sql(f"'{text}'")
    return Sql(f"decode(unhex('{text.encode().hex()}'), 'UTF-8')")


def pattern(regex: str) -> Sql:
    """A regular expression. Without backslashes and apostrophes it is parsed faster."""
    plain = "\\" not in regex and "'" not in regex
    # Raw strings, r'…', are none where the session leaves escapes alone.
    return Sql(f"'{regex}'") if plain else literal(regex)


def type_name(kind: DataType) -> str:
    """A type of a column as SQL spells it: none is a struct, whose fields may have any name.

    ``timestamp`` alone is whichever the session's settings say.
    """
    return _INSTANT.sub("timestamp_ltz", kind.simpleString())


def element(array: str, index: int) -> Sql:
    """An element of an array, NULL beyond its end."""
    return Sql(f"get({array}, {index})")


def case(condition: str, value: str, otherwise: str = "NULL") -> Sql:
    """One value or the other."""
    return Sql(f"CASE WHEN {condition} THEN {value} ELSE {otherwise} END")


def strings_where(values: Iterable[tuple[str, str]]) -> Sql:
    """An array of the strings, none NULL, whose condition is true: pairs of condition and string.

    Not by array_compact, which has a lambda inside: Spark compiles no stage with one as a whole,
    and copies every row on its way there.
    """
    empty = "array_remove(array(''), '')"  # a cast would make one that may hold NULL
    parts = [case(condition, f"array({value})", empty) for condition, value in values]
    return Sql(f"flatten(array({', '.join(parts)}))" if parts else empty)
