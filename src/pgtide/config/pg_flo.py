"""Rule and routing files of pg_flo, as its documentation describes them.

They name tables without a schema, so they apply to a table of that name in any
schema. A column that a table does not have is passed over, as pg_flo does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pgtide.config.rules import (
    OPERATIONS,
    Filter,
    Mask,
    Name,
    Operations,
    Operator,
    Regex,
    Route,
    Rule,
    Transform,
)
from pgtide.config.section import Section, as_problem
from pgtide.errors import ConfigError


class Parameters(Section):
    """What a rule's type needs, and nothing else."""

    type: Literal["mask", "regex"] | None = None
    mask_char: Name | None = None
    pattern: Name | None = None
    replace: str | None = None
    operator: Operator | None = None
    value: Any = None
    allow_empty_deletes: bool = False


NEEDED: dict[tuple[str, str | None], set[str]] = {
    ("transform", "mask"): {"type", "mask_char"},
    ("transform", "regex"): {"type", "pattern", "replace"},
    ("filter", None): {"operator", "value"},
    ("exclude_column", None): set(),
}
"""By type of the rule and of the transformation: the parameters it must have."""


class PgFloRule(Section):
    """One rule below ``tables: {NAME: …}``."""

    type: Literal["transform", "filter", "exclude_column"]
    column: Name
    parameters: Annotated[Parameters, BeforeValidator(lambda value: value or {})] = Parameters()
    operations: Operations = OPERATIONS
    allow_empty_deletes: bool = False

    @model_validator(mode="after")
    def _complete(self) -> PgFloRule:
        given = self.parameters.model_fields_set - {"allow_empty_deletes"}
        needed = NEEDED.get((self.type, self.parameters.type))
        if needed is None or given != needed:
            wanted = " or ".join(
                ", ".join(sorted(names)) or "none"
                for (kind, _), names in NEEDED.items()
                if kind == self.type
            )
            raise as_problem(ConfigError(f"parameters of a {self.type}: {wanted}"))
        self.rule("*.*")  # or what is wrong with it would be told without its place
        return self

    def rule(self, table: str) -> Rule:
        """The same as a rule of ours."""
        given = self.parameters
        common: dict[str, Any] = {
            "table": table,
            "operations": self.operations,
            "allow_empty_deletes": self.allow_empty_deletes or given.allow_empty_deletes,
            "optional": self.type != "filter",
        }
        if self.type == "exclude_column":
            # From all changes, as pg_flo does: a table has one set of columns.
            return Rule(exclude=[self.column], **{**common, "operations": OPERATIONS})
        if self.type == "filter":
            compared = Filter(column=self.column, operator=given.operator, value=given.value)
            return Rule(filter=compared, **common)
        return Rule(transform=self._transform(), **common)

    def _transform(self) -> Transform:
        given = self.parameters
        if given.type == "mask":
            return Transform(column=self.column, mask=Mask(char=given.mask_char or ""))
        regex = Regex(pattern=given.pattern or "", replace=given.replace or "")
        return Transform(column=self.column, regex=regex)


class PgFloRules(Section):
    """A rule file: ``tables: {NAME: [rule, …]}``."""

    tables: dict[Name, list[PgFloRule]]

    def rules(self) -> list[Rule]:
        return [
            rule.rule(_pattern(table)) for table, rules in self.tables.items() for rule in rules
        ]


class Mapping(Section):
    """Another name for a column."""

    source: Name
    destination: Name


class PgFloRoute(Section):
    """One entry of a routing file; its key names the table."""

    source_table: Name | None = None
    destination_table: Name | None = None
    column_mappings: list[Mapping] = Field(default=[])
    operations: Operations = OPERATIONS

    def route(self, table: str) -> Route:
        """The same as a route of ours."""
        to = "*" if self.destination_table is None else _quoted(self.destination_table)
        rename = {mapping.source: mapping.destination for mapping in self.column_mappings}
        return Route(table=_pattern(table), to=to, operations=self.operations, rename=rename)


class PgFloRoutes(Section):
    """A routing file, which is a section of tables."""

    routes: dict[Name, PgFloRoute] = Field(default={})

    def rules(self) -> list[Route]:
        return [route.route(table) for table, route in self.routes.items()]


def _pattern(table: str) -> str:
    return table if "." in table else f"*.{_quoted(table)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
