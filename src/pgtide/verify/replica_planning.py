"""How a table is compared with one of another Postgres database.

Both sides send the same bytes of a row (``record_send``). Types that Postgres itself brings have
the same oid and binary form everywhere; all others, and types that are not the same on both sides,
are sent as the text that Postgres prints, which is what went from one database to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgtide import oids
from pgtide.config.model import Pipeline
from pgtide.errors import ConfigError
from pgtide.rules import TableRules, compile_rules
from pgtide.shape import Column, Shape
from pgtide.spark.layout import TableName
from pgtide.spark.logged_table import LoggedTable
from pgtide.verify.canonical import as_text, identifier
from pgtide.verify.planning import (
    BY_RULE,
    NOT_IN_LOG,
    Refused,
    is_integer,
    logged_table,
    refuse_rules,
)
from pgtide.verify.postgres_side import KeyColumn, Side
from pgtide.verify.relations import Relation

UUID = 2950
_BINARY = {
    oids.BOOL: "bool",
    oids.INT2: "int2",
    oids.INT4: "int4",
    oids.INT8: "int8",
    oids.OID: "oid",
    oids.FLOAT4: "float4",
    oids.FLOAT8: "float8",
    oids.NUMERIC: "numeric",
    oids.BYTEA: "bytea",
    oids.DATE: "date",
    oids.TIME: "time",
    oids.TIMETZ: "timetz",
    oids.TIMESTAMP: "timestamp",
    oids.TIMESTAMPTZ: "timestamptz",
    oids.INTERVAL: "interval",
    UUID: "uuid",
}
"""Types whose binary form is the value, no more and no less than what is printed."""

# Sent for a column that is not there: nothing else is sent as this type, so every row differs.
_ABSENT = "'-'::\"char\""


@dataclass(frozen=True)
class Pair:
    """A column of both sides."""

    name: str  # at the source
    target: str  # in the target
    source_value: str
    target_value: str


@dataclass(frozen=True)
class ReplicaPlan:
    """How a table is compared."""

    table: TableName
    logged: LoggedTable
    source: Side
    target: Side | None  # None: there is no such table, which is an empty one
    columns: tuple[Pair, ...]
    keys: tuple[Pair, ...]  # empty for a table without a key
    key_indexes: tuple[int, ...]
    logged_columns: tuple[tuple[str, str], ...]  # quoted names and types of rows of the log
    numbered: bool
    left_out: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Found:
    """The table in the target."""

    shape: Shape
    relations: tuple[Relation, ...]


def plan_replica(
    pipeline: Pipeline,
    shape: Shape,
    relations: tuple[Relation, ...],
    shapes: Mapping[int, Shape],
    found: Found | None,
) -> ReplicaPlan:
    """The plan for a table as both catalogs have it; Refused when it cannot be compared."""
    logged = logged_table(shape, shapes)
    rules = compile_rules(pipeline.rules, pipeline.routes, shape.schema, shape.table)
    refuse_rules(rules)
    sent = _sent(shape, logged)
    there = {} if found is None else {column.name: column for column in found.shape.columns}
    names, left_out = _names(rules, shape, logged, there)
    pairs = {
        column.name: _pair(column, names[column.name], there)
        for column in shape.columns
        if column.name in names
    }
    keys = _keys(shape, logged, sent, pairs)
    ours = [column for column in shape.columns if column.name in keys]
    theirs = [there.get(pairs[key].target) for key in keys]
    if found is not None and (lost := [k for k, c in zip(keys, theirs, strict=True) if c is None]):
        raise Refused(f"the target has no column {pairs[lost[0]].target}, which is its key")
    return ReplicaPlan(
        table=(shape.schema, shape.table),
        logged=logged,
        source=_source(relations, pairs, ours),
        target=None if found is None else _target(found, pairs, keys, there),
        columns=tuple(pairs.values()),
        keys=tuple(pairs[key] for key in keys),
        key_indexes=tuple(keys.values()),
        logged_columns=tuple((identifier(c.name), c.type_name) for c in sent),
        numbered=len(keys) == 1 and all(c is None or is_integer(c) for c in (*ours, *theirs)),
        left_out=left_out,
        note=_note(rules, pairs, found, there),
    )


# -- which columns --------------------------------------------------------------------------


def _sent(shape: Shape, logged: LoggedTable) -> list[Column]:
    """The source's columns in the order of the log's rows."""
    numbered = {column.attnum: column for column in shape.columns}
    for known in logged.layout.columns:
        if known.attnum not in numbered:
            raise Refused(f"its column {known.name} is not the source's any more")
    return [numbered[known.attnum] for known in logged.layout.columns]


def _names(
    rules: TableRules, shape: Shape, logged: LoggedTable, there: Mapping[str, Column]
) -> tuple[dict[str, str], dict[str, str]]:
    """Names in the target of the columns that are compared, and why others are not."""
    known = {column.attnum: column.name for column in logged.layout.columns}
    try:
        named, changed = rules.names(known.values()), rules.transformed(known.values())
    except ConfigError as error:
        raise Refused(error.message) from error
    names, left_out = {}, {}
    for column in shape.columns:
        old = known.get(column.attnum)
        if old is None and column.generated and _is_generated(there.get(column.name)):
            # Each database computes it. A bag is cut by what the log has of its rows.
            if logged.layout.keys:
                names[column.name] = column.name
            else:
                left_out[column.name] = NOT_IN_LOG
        elif old is None:
            left_out[column.name] = NOT_IN_LOG
        elif old in changed:
            left_out[column.name] = BY_RULE
        elif old in named:
            names[column.name] = named[old]
    return names, left_out


def _is_generated(column: Column | None) -> bool:
    return column is not None and column.generated


def _keys(
    shape: Shape, logged: LoggedTable, sent: list[Column], pairs: Mapping[str, Pair]
) -> dict[str, int]:
    """The key's columns in the order of the table, and where rows of the log have them."""
    places = {sent[index].name: index for index in logged.layout.keys}
    if missing := [name for name in places if name not in pairs]:
        raise Refused(f"its key column {missing[0]} cannot be compared")
    return {column.name: places[column.name] for column in shape.columns if column.name in places}


def _note(
    rules: TableRules,
    pairs: Mapping[str, Pair],
    found: Found | None,
    there: Mapping[str, Column],
) -> str:
    if found is None:
        return f"the target has no table {'.'.join(rules.target)}"
    lacking = [pair.target for pair in pairs.values() if pair.target not in there]
    return f"the target has no column {', '.join(lacking)}" if lacking else ""


# -- SQL for their values -------------------------------------------------------------------


def _pair(column: Column, target: str, there: Mapping[str, Column]) -> Pair:
    ours, other = column.base_oid or column.type_oid, there.get(target)
    theirs = ours if other is None else other.base_oid or other.type_oid
    sent = _binary if ours == theirs and ours in _BINARY else as_text
    value = _ABSENT if other is None else sent(theirs, identifier(target))
    return Pair(column.name, target, sent(ours, identifier(column.name)), value)


def _binary(oid: int, name: str) -> str:
    value = f"{name}::{_BINARY[oid]}"
    if oid not in oids.FLOATS:
        return value
    # Postgres knows one NaN by value and prints it alike, whatever its bits.
    return f"CASE WHEN {name} = 'NaN' THEN 'NaN'::{_BINARY[oid]} ELSE {value} END"


def _source(relations: tuple[Relation, ...], pairs: Mapping[str, Pair], keys: list[Column]) -> Side:
    return Side(
        relations=relations,
        values=tuple(pair.source_value for pair in pairs.values()),
        keys=tuple(map(KeyColumn.of, keys)),
        key_values=tuple(pairs[key.name].source_value for key in keys),
    )


def _target(
    found: Found, pairs: Mapping[str, Pair], keys: Iterable[str], there: Mapping[str, Column]
) -> Side:
    columns = [there[pairs[key].target] for key in keys]
    return Side(
        relations=found.relations,
        values=tuple(pair.target_value for pair in pairs.values()),
        keys=tuple(KeyColumn.of(column, nullable=column.nullable) for column in columns),
        key_values=tuple(pairs[key].target_value for key in keys),
    )
