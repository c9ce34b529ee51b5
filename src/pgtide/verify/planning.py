"""Which tables of a pipeline can be compared, and of each which columns, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide import oids
from pgtide.config.model import Pipeline
from pgtide.config.sinks import DeltaSettings, PostgresSettings
from pgtide.errors import ConfigError, PipelineError
from pgtide.rules import TableRules, compile_rules
from pgtide.rules.cells import Cell
from pgtide.shape import Column, Shape
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.mirror import OWN, MirrorPlan
from pgtide.sinks.delta.target import MODE_PROPERTY, RELATION_PROPERTY, Target
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.layout import TableName
from pgtide.spark.logged_table import LoggedTable
from pgtide.verify.canonical import Canonical, canonical
from pgtide.verify.postgres_side import KeyColumn, Side
from pgtide.verify.relations import Relation

INTEGERS = frozenset({oids.INT2, oids.INT4, oids.INT8})
BY_RULE = "a rule changes it"
UNCOMPARABLE = "there is no exact comparison for its type"
ARRAY_UNDER_NULL = "arrays that the mirror's type cannot hold are NULL there"
NOT_IN_LOG = "it is not published"


class Refused(Exception):
    """A table that cannot be compared; the text says why."""


@dataclass(frozen=True)
class Compared:
    """A column of both sides."""

    name: str  # at the source
    target: str  # in the mirror
    type: t.DataType  # there
    value: Canonical


@dataclass(frozen=True)
class TablePlan:
    """How a table is compared."""

    table: TableName
    logged: LoggedTable
    relations: tuple[Relation, ...]  # where the source has its rows
    target: Target
    mirror: MirrorPlan
    columns: tuple[Compared, ...]
    keys: tuple[Compared, ...]  # empty for a table without a key
    key_columns: tuple[Column, ...]
    key_indexes: tuple[int, ...]  # of these columns in rows of the log
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> Side:
        conditions: tuple[str, ...] = ()
        if self.mirror.reader.policy == "null":
            # A row whose key the mirror's type cannot hold has no place in it.
            conditions = tuple(f"({key.value.source}) IS NOT NULL" for key in self.keys)
        return Side(
            relations=self.relations,
            values=tuple(value.source for value in self.values),
            keys=tuple(map(KeyColumn.of, self.key_columns)),
            key_values=tuple(value.source for value in self.key_values),
            conditions=conditions,
        )

    @property
    def numbered(self) -> bool:
        return len(self.key_columns) == 1 and is_integer(self.key_columns[0])

    @property
    def values(self) -> list[Canonical]:
        return [column.value for column in self.columns]

    @property
    def key_values(self) -> list[Canonical]:
        return [key.value for key in self.keys]


def refusal(pipeline: Pipeline) -> str:
    """Why no table of a pipeline can be compared; empty when some can."""
    sink = pipeline.sink
    if not isinstance(sink, DeltaSettings | PostgresSettings):
        return f"a {sink.type} sink has no rows to compare with the source"
    if sink.mode != "mirror":
        kind = "Delta table" if isinstance(sink, DeltaSettings) else "Postgres target"
        return f"a {kind} in mode {sink.mode} does not hold the rows of the source"
    return ""


def is_integer(column: Column) -> bool:
    """Whether values can be cut into ranges by a shift."""
    return (column.base_oid or column.type_oid) in INTEGERS


def refuse_rules(rules: TableRules) -> None:
    """Refuse a table of which the pipeline does not take all changes."""
    if rules.selects:
        raise Refused("a filter or a route leaves out some of its changes")


def plan_table(
    pipeline: Pipeline,
    shape: Shape,
    relations: tuple[Relation, ...],
    shapes: Mapping[int, Shape],
    target: Target,
) -> TablePlan:
    """The plan for a table as the catalog has it; Refused when it cannot be compared."""
    assert isinstance(pipeline.sink, DeltaSettings)
    logged = logged_table(shape, shapes)
    rules = compile_rules(pipeline.rules, pipeline.routes, shape.schema, shape.table)
    refuse_rules(rules)
    layout = logged.layout
    reader = CellReader.of(layout, pipeline)
    mirror = MirrorPlan(
        layout=reader.as_read,
        rules=rules,
        reader=reader,
        committed_at=pipeline.sink.committed_at,
        soft_delete=pipeline.sink.soft_delete,
        relations={s.id: s.oid for s in logged.shapes if s.root_oid == layout.shape.oid},
    )
    try:
        wanted = {column.name: column for column in mirror.columns()}
        places = dict(zip(mirror.keys(), layout.keys, strict=True)) if layout.keys else {}
    except (ConfigError, PipelineError) as error:
        raise Refused(error.message) from error
    types = _types(target, shape, wanted)
    left_out: dict[str, str] = {}
    compared: dict[str, Compared] = {}
    numbered = {column.attnum: column for column in shape.columns}
    for name, cell, changed in _cells(mirror):
        column = numbered.get(cell.attnum)
        if column is None:
            raise Refused(f"its column {cell.name} is not the source's any more")
        value = None if changed else canonical(column, types[name], name, reader.policy)
        if value is not None:
            compared[name] = Compared(column.name, name, types[name], value)
        else:
            left_out[column.name] = _reason(changed, types[name])
    known = {column.attnum for column in layout.columns}
    left_out |= {c.name: NOT_IN_LOG for c in shape.columns if c.attnum not in known}
    if missing := [key for key in places if key not in compared]:
        raise Refused(f"its key column {missing[0]} cannot be compared")
    if not places and left_out:
        raise Refused("it has no key, and columns that cannot be compared")
    by_name = {column.name: column for column in shape.columns}
    # In the order of the table's columns, whatever that of the partition is which was seen last.
    order = list(by_name)
    keys = sorted(places, key=lambda key: order.index(compared[key].name))
    return TablePlan(
        table=(shape.schema, shape.table),
        logged=logged,
        relations=relations,
        target=target,
        mirror=mirror,
        columns=tuple(compared.values()),
        keys=tuple(compared[key] for key in keys),
        key_columns=tuple(by_name[compared[key].name] for key in keys),
        key_indexes=tuple(places[key] for key in keys),
        left_out=left_out,
    )


def logged_table(shape: Shape, shapes: Mapping[int, Shape]) -> LoggedTable:
    """What the log has of a table; Refused when it does not know it."""
    mine = {
        known.id: known for known in shapes.values() if shape.oid in (known.oid, known.root_oid)
    }
    if not mine:
        raise Refused("the log does not know it yet")
    newest = max(mine.values(), key=lambda known: known.id)
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in newest.home_name)
    return LoggedTable.find(quoted, mine).present


def _types(
    target: Target, shape: Shape, wanted: Mapping[str, TargetColumn]
) -> dict[str, t.DataType]:
    """The types of the mirror's columns; those it would have, when it was never made."""
    if not target.exists():
        return {name: column.type for name, column in wanted.items()}
    properties = target.properties()
    if properties.get(MODE_PROPERTY) != "mirror":
        raise Refused("the table at its place in the lake is no mirror")
    if properties.get(RELATION_PROPERTY) != str(shape.oid):
        raise Refused("the table at its place in the lake mirrors another one")
    found = {one.name: one.dataType for one in target.schema.fields}
    if lacking := [name for name in wanted if name not in found]:
        raise Refused(f"the mirror has no column {lacking[0]}")
    return found


def _cells(mirror: MirrorPlan) -> list[tuple[str, Cell, bool]]:
    """The mirror's columns by name, and whether a rule has changed their values."""
    before = mirror.reader.after()
    values = {id(cell.value) for cell in before}
    cells = mirror.rules.apply(before, F.col("op"))
    names = target_names(cells, OWN)
    return [
        (name, cell, id(cell.value) not in values) for name, cell in zip(names, cells, strict=True)
    ]


def _reason(changed: bool, kind: t.DataType) -> str:
    if changed:
        return BY_RULE
    return ARRAY_UNDER_NULL if isinstance(kind, t.ArrayType) else UNCOMPARABLE
