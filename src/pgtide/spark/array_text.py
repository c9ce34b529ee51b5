"""Texts that hold several values, arrays and hstore, taken apart by column expressions.

A regular expression finds the tokens, and joining them again must give back the text: what
the expression skipped, dimensions and bounds included, thus makes the whole unrepresentable.
Quantifiers are possessive: others recurse in Java, and a long value would end in a stack overflow.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
# Postgres quotes what is empty, spells NULL, or has a quote, backslash, brace, comma or space.
_ARRAY_TOKEN = rf'(?s){_QUOTED}|[^",{{}}\\\s]++'
_PAIR = rf"(?s)({_QUOTED})=>(?:({_QUOTED})|NULL)"


def decode_array(
    text: Column,
    decode: Callable[[Column], Column],
    unrepresentable: Callable[[Column], Column] | None,
) -> Column:
    """The array of a text, by the codec of its elements; NULL when any of it has no value.

    ``unrepresentable`` is None when every text of an element has a value.
    """

    def from_tokens(tokens: Column) -> Column:
        whole = F.concat(F.lit("{"), F.array_join(tokens, ","), F.lit("}")) == text
        return F.when(whole, F.transform(tokens, _element))

    def typed(items: Column) -> Column:
        values = F.transform(items, decode)
        return (
            values if unrepresentable is None else F.when(~F.exists(items, unrepresentable), values)
        )

    tokens = F.regexp_extract_all(text, F.lit(_ARRAY_TOKEN), F.lit(0))
    return _with(_with(tokens, from_tokens), typed)


def decode_hstore(text: Column) -> Column:
    """The map of a text as hstore prints it; NULL for any other text, and for a key twice."""

    def from_tokens(both: Column) -> Column:
        keys, values = both["k"], both["v"]
        # A group that took no part is an empty string: that is NULL, "" has its quotes.
        shown = F.transform(values, lambda v: F.when(v == "", "NULL").otherwise(v))
        pairs = F.zip_with(keys, shown, lambda k, v: F.concat(k, F.lit("=>"), v))
        names = F.transform(keys, _unquoted)
        once = F.size(F.array_distinct(names)) == F.size(names)
        return F.when(
            (F.array_join(pairs, ", ") == text) & once,
            F.map_from_arrays(names, F.transform(values, lambda v: F.when(v != "", _unquoted(v)))),
        )

    keys, values = (F.regexp_extract_all(text, F.lit(_PAIR), F.lit(n)) for n in (1, 2))
    return _with(F.struct(keys.alias("k"), values.alias("v")), from_tokens)


def _with(value: Column, body: Callable[[Column], Column]) -> Column:
    """``body`` of a value that is computed once, however often it is used."""
    return F.transform(F.array(value), body)[0]


def _element(token: Column) -> Column:
    return (
        F.when(token.startswith('"'), _unquoted(token))
        # Any spelling, as Postgres reads it; it prints capitals.
        .when(F.lower(token) != "null", token)
    )


def _unquoted(token: Column) -> Column:
    inner = F.substr(token, F.lit(2), F.length(token) - 2)
    return F.when(
        F.contains(inner, F.lit("\\")), F.regexp_replace(inner, r"(?s)\\(.)", "$1")
    ).otherwise(inner)
