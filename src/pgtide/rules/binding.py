"""A rule and the columns it meets: what is wrong with it, and the columns behind it.

Used by ``pgtide check`` with the columns of the catalog and again when a
pipeline compiles its rules, so both refuse the same things. No Spark here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from pgtide.config.rules import Filter, Rule, Transform
from pgtide.errors import ConfigError
from pgtide.postgres.names import is_literal
from pgtide.rules.kinds import Field, Kind, operators
from pgtide.rules.regex import translate
from pgtide.rules.values import comparable

TEXT_ONLY = {"mask", "regex", "replace", "truncate"}


def bind(rule: Rule, fields: Sequence[Field]) -> list[Field]:
    """The columns after the rule; raises ConfigError when it cannot apply to these."""
    known = {field.name: field for field in fields}
    if not applies(rule, known):
        return list(fields)
    if rule.filter is not None:
        _bind_filter(rule.filter, known)
    elif rule.transform is not None:
        result = _bind_transform(rule.transform, known)
        return [result if field.name == result.name else field for field in fields]
    names = surviving(rule, known)
    return [Field(names[field.name], field.kind) for field in fields if field.name in names]


def applies(rule: Rule, known: Collection[str]) -> bool:
    """Whether the table has the rule's columns; raises when it must have them and has not."""
    missing = [name for name in mentioned(rule) if name not in known]
    if not missing:
        return True
    if is_optional(rule):
        # Where some of several columns are there, the rule applies to those. What may leave is
        # listed also for a table that has none of it: that one is not to leave as a whole.
        return len(missing) < len(mentioned(rule)) or rule.include is not None
    near = difflib.get_close_matches(missing[0], known, n=1)
    advice = f"did you mean {near[0]}? Or" if near else "correct the column's name, or"
    raise ConfigError(
        f"there is no column {missing[0]}",
        detail=f"At this point of the rules the table has: {', '.join(known)}.",
        hint=f"{advice} say optional: true, to skip the rule in rows that do not have it",
    )


def is_optional(rule: Rule) -> bool:
    """A pattern may match tables without the column; a filter must still be able to decide."""
    return rule.optional or (rule.filter is None and not is_literal(rule.table))


def mentioned(rule: Rule) -> list[str]:
    """The columns that a rule names outside of SQL."""
    if rule.filter is not None:
        return [] if rule.filter.column is None else [rule.filter.column]
    if rule.transform is not None:
        return [rule.transform.column]
    return list(rule.exclude or rule.include or rule.rename or ())


def surviving(rule: Rule, names: Collection[str]) -> dict[str, str]:
    """Old name to new name of the columns that are left after the rule."""
    if rule.exclude is not None:
        left = {name: name for name in names if name not in rule.exclude}
    elif rule.include is not None:
        left = {name: name for name in names if name in rule.include}
    else:
        return renamed(rule.rename or {}, names)
    if not left:
        raise ConfigError("no column would be left", hint="leave out the table instead")
    return left


def renamed(renames: dict[str, str], names: Collection[str]) -> dict[str, str]:
    """Old name to new name, all at once, so that names may be swapped."""
    result = {name: renames.get(name, name) for name in names}
    taken = sorted({new for new in result.values() if list(result.values()).count(new) > 1})
    if taken:
        raise ConfigError(
            f"two columns would be called {taken[0]}", hint="rename or exclude the other one"
        )
    return result


def key_changed(transform: Transform) -> ConfigError:
    """The error for a transformation of what identifies a row."""
    return ConfigError(
        f"{transform.way} on {transform.column}, which is part of the key",
        hint="rows with different keys could become one: leave the key alone",
    )


def _bind_filter(compared: Filter, known: dict[str, Field]) -> None:
    if compared.column is None or compared.operator is None:
        return
    kind = known[compared.column].kind
    if compared.operator not in operators(kind):
        raise ConfigError(
            f"{compared.operator} cannot compare column {compared.column}, which is {kind.value}",
            hint=f"use one of {', '.join(sorted(operators(kind)))}, or an SQL expression",
        )
    if compared.operator != "is_null":
        for value in compared.values:
            comparable(kind, value)


def _bind_transform(transform: Transform, known: dict[str, Field]) -> Field:
    kind = known[transform.column].kind
    if transform.way in TEXT_ONLY and kind not in (Kind.TEXT, Kind.UNKNOWN):
        raise ConfigError(
            f"{transform.way} works on text, column {transform.column} is {kind.value}",
            hint="use hash, null or an SQL expression",
        )
    if transform.regex is not None:
        translate(transform.regex.pattern, transform.regex.replace)
    after = {"null": kind, "sql": Kind.UNKNOWN}.get(transform.way, Kind.TEXT)
    return Field(transform.column, after)
