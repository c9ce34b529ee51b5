"""What rules hide of a table, by the names they give: values changed, left out, filtered by.

A table or column that gets a name which they do not know would no longer be hidden.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgtide.rules.binding import mentioned
from pgtide.rules.compiling import TableRules


@dataclass(frozen=True, slots=True)
class Hiding:
    """Columns by their names at the source, whether or not a table has all that rules name."""

    hidden: frozenset[str]
    known: frozenset[str]
    """Those of which rules say what may be seen: hidden, or among what they let through."""
    decisive: frozenset[str]
    """Those by whose values filters decide which rows are kept; they are seen as they are."""
    filtered: bool
    """Whether SQL decides which rows are kept."""

    @classmethod
    def of(cls, rules: TableRules, columns: Iterable[str]) -> Hiding:
        now = {name: name for name in columns}
        hidden, shown, decisive, filtered = set[str](), set[str](), set[str](), False
        for step in rules.rules:
            rule, named = step.rule, {*mentioned(step.rule)}
            touched = {old for old, new in now.items() if new in named}
            if rule.rename is not None:
                now = {old: rule.rename.get(new, new) for old, new in now.items()}
            elif rule.include is not None:
                hidden |= now.keys() - touched
                shown |= touched
            elif rule.filter is not None:
                decisive |= touched
                filtered |= rule.filter.sql is not None
            else:
                hidden |= touched
        return cls(frozenset(hidden), frozenset(hidden | shown), frozenset(decisive), filtered)
