"""What rules look at: the columns that values and filters of a row are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgtide.config.rules import Rule
from pgtide.rules.sql import references


@dataclass(frozen=True, slots=True)
class Origins:
    """All by the names that columns have before the rules."""

    values: Mapping[str, frozenset[str]]
    """Of each column that is left: those that its value is made from."""
    filters: frozenset[str]
    """Those that decide whether a row is kept."""
    computed: frozenset[str] = frozenset()
    """Of the columns that are left: those that SQL makes, of NULL too; other rules keep NULL."""

    @property
    def of_null(self) -> frozenset[str]:
        """Those in which NULL may make a difference to a row."""
        return self.filters.union(self.computed, *(self.values[name] for name in self.computed))


def looked_at(rule: Rule, names: Sequence[str]) -> list[str]:
    """The columns that a filter or a transform reads."""
    if rule.filter is not None:
        sql, column = rule.filter.sql, rule.filter.column
    elif rule.transform is not None:
        sql, column = rule.transform.sql, rule.transform.column
        if rule.transform.null is not None:
            return []
    else:
        return []
    return references(sql, names) if sql is not None else [column or ""]
