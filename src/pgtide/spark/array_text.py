"""Texts that hold several values, arrays and hstore, taken apart by column expressions.

A regular expression finds the tokens, and joining them again must give back the text: what
the expression skipped, dimensions and bounds included, thus makes the whole unrepresentable.
Quantifiers are possessive: others recurse in Java, and a long value would end in a stack overflow.
"""

from __future__ import annotations

from collections.abc import Callable

from pgtide.spark.sql_text import Sql, case, literal, pattern

QUOTE, BACKSLASH = '"', "\\"
_ESCAPED = r"(?s)\\(.)"
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
# Postgres quotes what is empty, spells NULL, or has a quote, backslash, brace, comma or space.
_ARRAY_TOKEN = rf'(?s){_QUOTED}|[^",{{}}\\\s]++'
_PAIR = rf"(?s)({_QUOTED})=>(?:({_QUOTED})|NULL)"


def decode_array(
    text: Sql,
    decode: Callable[[Sql], Sql],
    unrepresentable: Callable[[Sql], Sql] | None,
) -> Sql:
    """The array of a text, by the codec of its elements; NULL when any of it has no value.

    ``unrepresentable`` is None when every text of an element has a value.
    """
    item = Sql("item_")

    def from_tokens(tokens: Sql) -> Sql:
        whole = f"concat('{{', array_join({tokens}, ','), '}}') = {text}"
        return case(whole, f"transform({tokens}, token_ -> {_element(Sql('token_'))})")

    def typed(items: Sql) -> Sql:
        values = f"transform({items}, {item} -> {decode(item)})"
        if unrepresentable is None:
            return Sql(values)
        return case(f"NOT exists({items}, {item} -> {unrepresentable(item)})", values)

    tokens = Sql(f"regexp_extract_all({text}, {pattern(_ARRAY_TOKEN)}, 0)")
    return _with(_with(tokens, "tokens_", from_tokens), "items_", typed)


def decode_hstore(text: Sql) -> Sql:
    """The map of a text as hstore prints it; NULL for any other text, and for a key twice."""

    def from_tokens(both: Sql) -> Sql:
        keys, values = f"{both}.k", f"{both}.v"
        value = Sql("value_")
        # A group that took no part is an empty string: that is NULL, "" has its quotes.
        shown = case(f"{value} = ''", "'NULL'", value)
        shown_values = f"transform({values}, {value} -> {shown})"
        pairs = f"zip_with({keys}, {shown_values}, (key_, {value}) -> concat(key_, '=>', {value}))"
        names = f"transform({keys}, key_ -> {_unquoted(Sql('key_'))})"
        unquoted = case(f"{value} != ''", _unquoted(value))
        once = f"size(array_distinct({names})) = size({names})"
        return case(
            f"array_join({pairs}, ', ') = {text} AND {once}",
            f"map_from_arrays({names}, transform({values}, {value} -> {unquoted}))",
        )

    keys, values = (f"regexp_extract_all({text}, {pattern(_PAIR)}, {n})" for n in (1, 2))
    return _with(Sql(f"named_struct('k', {keys}, 'v', {values})"), "both_", from_tokens)


def _with(value: Sql, name: str, body: Callable[[Sql], Sql]) -> Sql:
    """``body`` of a value that is computed once, however often it is used."""
    return Sql(f"transform(array({value}), {name} -> {body(Sql(name))})[0]")


def _element(token: Sql) -> Sql:
    # Any spelling of NULL, as Postgres reads it; it prints capitals.
    plain = case(f"lower({token}) != 'null'", token)
    return case(f"startswith({token}, {literal(QUOTE)})", _unquoted(token), plain)


def _unquoted(token: Sql) -> Sql:
    inner = f"substr({token}, 2, length({token}) - 2)"
    escaped = f"regexp_replace({inner}, {pattern(_ESCAPED)}, '$1')"
    return case(f"contains({inner}, {literal(BACKSLASH)})", escaped, inner)
