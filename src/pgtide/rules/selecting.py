"""The lines of ``pgtide check`` about the tables that pipelines select, and pivots' columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgtide.config import Pipeline, TablePatterns
from pgtide.config.rules import Rule
from pgtide.config.sinks import DeltaSettings, FileSettings, PivotSettings, SinkSettings
from pgtide.errors import ConfigError
from pgtide.postgres.names import identity_full, is_literal, nearest
from pgtide.postgres.verdict import Check, fail, warn
from pgtide.rules.binding import bind
from pgtide.rules.kinds import Field, Kind, kind_of
from pgtide.shape import Shape

_TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.UNKNOWN)


def check_selection(pipelines: dict[str, Pipeline], shapes: Sequence[Shape]) -> Iterator[Check]:
    """Patterns without tables, and tables that a pivot cannot be made of."""
    names = list(dict.fromkeys(shape.home_name for shape in shapes))
    for name, pipeline in pipelines.items():
        patterns = TablePatterns(pipeline.tables)
        for text in patterns.unmatched(names):
            hint = nearest(text, names) if is_literal(text) else ""
            yield warn("tables", f"{name}: the pattern {text!r} matches no table", hint)
        pivot = _pivot(pipeline.sink)
        if pivot is None:
            continue
        for shape in shapes:
            if patterns.matches(*shape.home_name):
                for line in _pivot_checks(pivot, pipeline.rules, shape, shapes):
                    yield Check("pivot", line.level, f"{name}: {line.message}", line.hint)


def _pivot(sink: SinkSettings) -> PivotSettings | None:
    if isinstance(sink, DeltaSettings):
        return sink.pivot if sink.mode == "pivot" else None
    return sink.pivot if isinstance(sink, FileSettings) and sink.envelope == "pivot" else None


def _pivot_checks(
    pivot: PivotSettings, rules: Sequence[Rule], shape: Shape, shapes: Sequence[Shape]
) -> Iterator[Check]:
    if not shape.root_oid:  # a partition's columns are its root's
        yield from _column_checks(pivot, rules, shape)
    # A partitioned table has no rows of its own.
    divided = any(other.root_oid == shape.oid for other in shapes)
    if shape.replica_identity != "f" and not divided:
        text = f"updates and deletes of {shape.name} are refused: they lack the old row"
        yield warn("pivot", text, f"Run: {identity_full(shape.schema, shape.table)};")


def _column_checks(pivot: PivotSettings, rules: Sequence[Rule], shape: Shape) -> Iterator[Check]:
    if not pivot.key and not any(column.key for column in shape.columns):
        text = f"{shape.name} has no key, and pivot.key names none"
        yield fail("pivot", text, "Name the columns that tell whose change it is in pivot.key.")
    try:
        left = _after_rules(rules, shape)
    except ConfigError:
        return  # told with the rules
    times = {"created": pivot.created, "updated": pivot.updated}
    named = [("key", name) for name in pivot.key] + [("columns", name) for name in pivot.columns]
    named += [(setting, name) for setting, name in times.items() if name is not None]
    for setting, name in named:
        hint = f"Correct pivot.{setting}, or select other tables."
        if name not in left:
            text = f"{shape.name} has no column {name}, which pivot.{setting} names"
            yield fail("pivot", text, hint)
        elif setting in times and left[name] not in _TIMES:
            text = f"column {name} of {shape.name}, which pivot.{setting} names, is no time"
            yield fail("pivot", text, hint)


def _after_rules(rules: Sequence[Rule], shape: Shape) -> dict[str, Kind]:
    """The columns that the rules leave."""
    fields = [Field(c.name, kind_of(c.base_oid or c.type_oid)) for c in shape.columns]
    for rule in rules:
        if TablePatterns([rule.table]).matches(shape.schema, shape.table):
            fields = bind(rule, fields)
    return {field.name: field.kind for field in fields}
