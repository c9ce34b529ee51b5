"""Rules and routes as they are written. What they mean for a column is in ``pgtide.rules``."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from pgtide.config.patterns import TablePatterns, split_name
from pgtide.config.section import Section, as_problem, reporting
from pgtide.errors import ConfigError

Operation = Literal["insert", "update", "delete"]
Operator = Literal["eq", "ne", "gt", "lt", "gte", "lte", "contains", "in", "is_null"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
WAYS = ("mask", "regex", "hash", "replace", "truncate", "null", "sql")
"""The ways to transform a value."""


def _pattern(value: str) -> str:
    TablePatterns([value])
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _not_empty(value: Any) -> Any:
    if not value:
        raise ConfigError("must not be empty", hint="leave it out to mean all operations")
    return value


def _scalar(value: Any) -> Any:
    """A YAML value as text: the column's type, not YAML's, says how it is read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return value.isoformat() if isinstance(value, dt.date) else value


def _value(value: Any) -> Any:
    texts = [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)
    given = texts if isinstance(texts, list) else [texts] if texts is not None else []
    if not all(isinstance(text, str) for text in given):
        raise ConfigError(
            "null, lists and sections are no values",
            hint="write texts, numbers, dates, true or false; to find NULL use is_null",
        )
    return texts


def _null_key(value: Any) -> Any:
    """YAML reads the key in ``{column: a, null: true}`` as no text but null."""
    if not isinstance(value, dict):
        return value
    return {"null" if key is None else key: item for key, item in value.items()}


def _destination(value: str) -> str:
    parts = split_name(value)
    plain = [name for name, quoted in parts if not quoted and name != "*"]
    if value.startswith("!") or any(re.search(r"[*?\[]", name) for name in plain):
        raise ConfigError(
            f"{value!r} is not a table's name",
            hint="write schema.table; a * stands for the whole name that the table has",
        )
    return value


TablePattern = Annotated[str, AfterValidator(reporting(_pattern))]
Operations = Annotated[
    tuple[Annotated[Operation, BeforeValidator(_lower)], ...],
    AfterValidator(reporting(_not_empty)),
]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1)]
Renames = dict[Name, Name]


class Filter(Section):
    """Which rows are kept: a comparison, or an SQL expression."""

    column: Name | None = None
    """Name of the column that is compared."""
    operator: Operator | None = None
    """How it is compared."""
    value: Annotated[str | list[str] | None, BeforeValidator(reporting(_value))] = None
    """What it is compared with; a list for `in`."""
    sql: Name | None = None
    """An expression of Spark SQL over the row's columns."""

    @model_validator(mode="after")
    def _complete(self) -> Filter:
        if fault := self._fault():
            raise as_problem(ConfigError(fault, hint="see docs/RULES.md, Filters"))
        return self

    def _fault(self) -> str:
        comparison = (self.column, self.operator, self.value)
        if self.sql is not None:
            return "" if comparison == (None, None, None) else "sql stands alone"
        if self.column is None or self.operator is None:
            return "needs column and operator, or sql"
        if self.operator == "is_null":
            return "" if self.value in (None, "true", "false") else "is_null takes true or false"
        if self.operator == "in":
            fine = isinstance(self.value, list) and self.value
            return "" if fine else "in takes a list of values"
        return "" if isinstance(self.value, str) else f"{self.operator} takes a single value"

    @property
    def values(self) -> list[str]:
        """The values that the column is compared with."""
        if isinstance(self.value, list):
            return self.value
        return [] if self.value is None else [self.value]


class Mask(Section):
    """Keep the first and the last character."""

    char: Name = "*"
    """What each character in between becomes."""


class Regex(Section):
    """Replace every match of a regular expression."""

    pattern: Name
    """What is looked for."""
    replace: str
    """What it becomes; `$1`, `${1}` and `${name}` stand for groups, `$$` for a dollar."""


class Hash(Section):
    """SHA-256 of salt and value, in hexadecimal."""

    salt: Annotated[SecretStr, Field(min_length=1)]
    """A secret, put before each value."""


class Replace(Section):
    """Replace a text wherever it occurs."""

    from_: Name = Field(alias="from")
    """What is looked for."""
    to: str
    """What it becomes."""


class Truncate(Section):
    """Keep the first characters."""

    length: int = Field(ge=0)
    """How many."""


class Transform(Section):
    """What a column's value becomes: one of the seven ways."""

    column: Name
    """Name of the column."""
    mask: Mask | None = None
    regex: Regex | None = None
    hash: Hash | None = None
    replace: Replace | None = None
    truncate: Truncate | None = None
    null: Literal[True] | None = None
    sql: Name | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Transform:
        _exactly_one(self, WAYS)
        return self

    @property
    def way(self) -> str:
        """The one of ``WAYS`` that is set."""
        return next(name for name in WAYS if getattr(self, name) is not None)


class Rule(Section):
    """One step that changes of the matching tables take; rules apply in order."""

    table: TablePattern
    """Pattern over `schema.table`, as in `source.tables`."""
    operations: Operations = OPERATIONS
    """Which changes it applies to; all by default. Rows of a snapshot count as inserts."""
    allow_empty_deletes: bool = False
    """Let a delete through a filter where the old row has no value for it."""
    optional: bool = False
    """Skip the rule where a table has no such column, instead of stopping."""
    filter: Filter | None = None
    transform: Annotated[Transform | None, BeforeValidator(_null_key)] = None
    exclude: Names | None = None
    include: Names | None = None
    rename: Annotated[Renames, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_action(self) -> Rule:
        _exactly_one(self, ("filter", "transform", "exclude", "include", "rename"))
        restricted = set(self.operations) != set(OPERATIONS)
        for name in ("exclude", "include", "rename"):
            if restricted and getattr(self, name) is not None:
                text = f"{name} applies to all operations: a table has one set of columns"
                raise as_problem(ConfigError(text, hint="leave operations out"))
        return self


class Route(Section):
    """Where changes of the matching tables go; the last route that matches decides."""

    table: TablePattern
    """Pattern over `schema.table`, as in `source.tables`."""
    to: Annotated[str, AfterValidator(reporting(_destination))] = "*"
    """`schema.table`, or `table` in the same schema; `*` stands for the name it has."""
    operations: Operations = OPERATIONS
    """Changes that take the route; the others are left out."""
    rename: Renames = Field(default={})
    """New names of columns, given after all rules."""

    def target(self, schema: str, table: str) -> tuple[str, str]:
        """Schema and table that this table's changes go to."""
        own = (schema, table)
        parts = split_name(self.to)
        names = [("*", False), *parts] if len(parts) == 1 else parts
        first, second = (
            old if (name, quoted) == ("*", False) else name
            for (name, quoted), old in zip(names, own, strict=True)
        )
        return first, second


def route_of(routes: Sequence[Route], schema: str, table: str) -> Route | None:
    """The last route that matches."""
    for route in reversed(routes):
        if TablePatterns([route.table]).matches(schema, table):
            return route
    return None


def _exactly_one(section: Section, names: tuple[str, ...]) -> None:
    given = [name for name in names if getattr(section, name) is not None]
    if len(given) != 1:
        found = f"has {' and '.join(given)}" if given else "has none"
        fault = f"needs exactly one of {', '.join(names)}; {found}"
        raise as_problem(ConfigError(fault, hint="write one rule for each, in order"))
