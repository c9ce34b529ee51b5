"""The rules and the route of one table, as Spark columns.

Rules apply in the order of the configuration and a filter sees values as the
rules before it left them; the route comes last. Operations are those of the
log: rows of a snapshot (``read``) count as inserts, and what is no change of a
row (``truncate``, ``ddl``, …) passes untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from pgtide.config.patterns import TablePatterns
from pgtide.config.rules import OPERATIONS, Operation, Route, Rule, route_of
from pgtide.errors import ConfigError
from pgtide.rules.binding import applies, bind, key_changed, renamed, surviving
from pgtide.rules.cells import Cell, all_sent
from pgtide.rules.comparisons import comparison
from pgtide.rules.origins import Origins, looked_at
from pgtide.rules.sql import expression, references
from pgtide.rules.transforms import transformed


def compile_rules(
    rules: Sequence[Rule], routes: Sequence[Route], schema: str, table: str
) -> TableRules:
    """What a pipeline does to changes of this table."""
    chosen = (
        _Numbered(at, rule)
        for at, rule in enumerate(rules, start=1)
        if TablePatterns([rule.table]).matches(schema, table)
    )
    route = route_of(routes, schema, table)
    return TableRules((schema, table), tuple(chosen), route)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A rule and its place in the configuration, which errors name."""

    number: int
    rule: Rule


@dataclass(frozen=True, slots=True)
class TableRules:
    """Compiled rules; raises ConfigError where they do not fit the cells they are given."""

    source: tuple[str, str]
    rules: tuple[_Numbered, ...]
    route: Route | None

    @property
    def target(self) -> tuple[str, str]:
        """Schema and table that changes go to."""
        return self.route.target(*self.source) if self.route else self.source

    @property
    def operations(self) -> frozenset[Operation]:
        """The changes that take the route; ``read`` counts as insert, others always pass."""
        return frozenset(self.route.operations if self.route else OPERATIONS)

    def admits(self, op: Column) -> Column | None:
        """False for changes that the route leaves out; None when it leaves out none."""
        refused = _logged(set(OPERATIONS) - self.operations)
        return ~op.isin(refused) if refused else None

    @property
    def selects(self) -> bool:
        """Whether some changes may be left out: a filter, or a route for some operations."""
        filters = any(step.rule.filter is not None for step in self.rules)
        return filters or set(OPERATIONS) != self.operations

    def names(self, columns: Iterable[str]) -> dict[str, str]:
        """Old name to new name of the columns that ``apply`` leaves, for example of a key."""
        now = {name: name for name in columns}
        for step in self.rules:
            with _Place(self, step):
                left = surviving(step.rule, now.values())
            now = {old: left[new] for old, new in now.items() if new in left}
        with _Place(self, None):
            last = renamed(self.route.rename if self.route else {}, now.values())
        return {old: last[new] for old, new in now.items()}

    def transformed(self, columns: Iterable[str]) -> frozenset[str]:
        """Those of these columns, by their old names, whose values a rule changes."""
        now, changed = {name: name for name in columns}, set()
        for step in self.rules:
            with _Place(self, step):
                transform = step.rule.transform
                if transform is not None and applies(step.rule, list(now.values())):
                    changed |= {old for old, new in now.items() if new == transform.column}
                left = surviving(step.rule, now.values())
            now = {old: left[new] for old, new in now.items() if new in left}
        return frozenset(changed)

    def origins(self, columns: Iterable[str]) -> Origins:
        """What values and filters are made from, of rows that are inserted or read."""
        now = {name: name for name in columns}
        values = {name: frozenset({name}) for name in now}
        filters, computed = frozenset[str](), set[str]()
        for step in self.rules:
            rule, names = step.rule, list(now.values())
            with _Place(self, step):
                if "insert" in rule.operations and applies(rule, names):
                    used = looked_at(rule, names)
                    made = frozenset[str]().union(*(values[o] for o, n in now.items() if n in used))
                    if rule.filter is not None:
                        filters |= made
                    elif rule.transform is not None:
                        own = [o for o, n in now.items() if n == rule.transform.column]
                        values |= dict.fromkeys(own, made)
                        computed |= {*own} if rule.transform.sql is not None else set()
                left = surviving(rule, names)
            now = {old: left[new] for old, new in now.items() if new in left}
        left_values = {name: values[name] for name in now}
        return Origins(left_values, filters, frozenset(computed & now.keys()))

    def apply(self, cells: Sequence[Cell], op: Column) -> list[Cell]:
        """The row as it leaves: transformed, without what is excluded, under new names."""
        now = list(cells)
        for step in self.rules:
            with _Place(self, step):
                now = _after(step.rule, now, op)
        with _Place(self, None):
            last = renamed(self.route.rename if self.route else {}, [cell.name for cell in now])
        return [replace(cell, name=last[cell.name]) for cell in now]

    def keep(self, cells: Sequence[Cell], op: Column) -> Column | None:
        """Whether the filters keep a row; NULL: it hinges on a value that was not sent.

        None when there is no filter. A delete is to be asked with its old row.
        """
        now, kept = list(cells), None
        for step in self.rules:
            with _Place(self, step):
                one = _kept(step.rule, now, op)
                now = _after(step.rule, now, op)
            if one is not None:
                kept = one if kept is None else kept & one
        return kept

    def may_pass(self, cells: Sequence[Cell], op: Column) -> Column:
        """Whether a change may leave, also when that hinges on a value that was not sent."""
        admitted, kept = self.admits(op), self.keep(cells, op)
        conditions = [condition for condition in (admitted, kept) if condition is not None]
        return F.coalesce(reduce(Column.__and__, conditions, F.lit(True)), F.lit(True))


@dataclass(frozen=True, slots=True)
class _Place:
    """Says in errors which rule of which table they are about."""

    table: TableRules
    step: _Numbered | None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConfigError):
            what = "route" if self.step is None else f"rule {self.step.number}"
            name = ".".join(self.table.source)
            message = f"{what} for {name}: {error.message}"
            raise ConfigError(message, detail=error.detail, hint=error.hint) from None


def _after(rule: Rule, cells: list[Cell], op: Column) -> list[Cell]:
    bind(rule, [cell.field for cell in cells])
    names = [cell.name for cell in cells]
    if not applies(rule, names) or rule.filter is not None:
        return cells
    if rule.transform is not None:
        column = rule.transform.column
        if any(cell.key for cell in cells if cell.name == column):
            raise key_changed(rule.transform)
        when = None if _applies_to_all(rule) else op.isin(_logged(rule.operations))
        return [
            transformed(rule.transform, cell, cells, when) if cell.name == column else cell
            for cell in cells
        ]
    left = surviving(rule, names)
    return [replace(cell, name=left[cell.name]) for cell in cells if cell.name in left]


def _kept(rule: Rule, cells: list[Cell], op: Column) -> Column | None:
    """What one filter says; None when the rule is none, or has nothing to say here."""
    wanted = rule.filter
    if wanted is None or not applies(rule, [cell.name for cell in cells]):
        return None
    bind(rule, [cell.field for cell in cells])  # before the values are read
    if wanted.sql is not None:
        used = references(wanted.sql, [cell.name for cell in cells])
        met, type_ = expression(wanted.sql, cells)
        if not isinstance(type_, BooleanType):
            raise ConfigError(
                f"its SQL gives {type_.simpleString()}, a filter needs true or false",
                hint="write a condition, for example age >= 18",
            )
    else:
        used = [wanted.column or ""]
        compared = next(cell for cell in cells if cell.name == wanted.column)
        met = comparison(wanted, compared)
        if rule.allow_empty_deletes:
            # Of NULL, is_null says true or false too.
            empty = (op == "delete") & compared.text.isNull()
            met = F.when(~empty, met)
    sent = all_sent(cell for cell in cells if cell.name in used)
    decided = F.coalesce(met, F.lit(False))
    decided = decided if sent is None else F.when(sent, decided)
    if rule.allow_empty_deletes and "delete" in rule.operations:
        known = met if sent is None else F.when(sent, met)
        decided = F.when(op == "delete", F.coalesce(known, F.lit(True))).otherwise(decided)
    return F.when(op.isin(_logged(rule.operations)), decided).otherwise(F.lit(True))


def _applies_to_all(rule: Rule) -> bool:
    return set(rule.operations) == set(OPERATIONS)


def _logged(operations: Iterable[Operation]) -> list[str]:
    """The log's names of operations."""
    return sorted({*operations, "read"} if "insert" in operations else operations)
