"""The lines of ``pgtide check`` about rules and routes: what the catalog says of them.

Needs no Spark, so SQL and patterns that only Java can judge are left to ``sql_checking``;
all the rest is judged by the same code that compiles the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgtide.config import Pipeline, TablePatterns
from pgtide.config.rules import Route, Rule, route_of
from pgtide.config.sinks import DeltaSettings, PostgresSettings, SinkSettings
from pgtide.errors import ConfigError
from pgtide.postgres.names import is_literal, nearest
from pgtide.postgres.verdict import Check, fail, ok, warn
from pgtide.rules.binding import (
    applies,
    bind,
    is_optional,
    key_changed,
    mentioned,
    renamed,
    surviving,
)
from pgtide.rules.kinds import Field, kind_of
from pgtide.rules.partitions import misplaced, numbered
from pgtide.rules.regex import translate
from pgtide.shape import Shape


def check_rules(pipelines: dict[str, Pipeline], shapes: Sequence[Shape]) -> Iterator[Check]:
    """One line per pipeline that has rules or routes, or one per thing that is wrong."""
    for name, pipeline in pipelines.items():
        if not pipeline.rules and not pipeline.routes:
            continue
        patterns = TablePatterns(pipeline.tables)
        tables = [shape for shape in shapes if _matches(patterns, shape)]
        found = [
            *_patterns_without_tables(pipeline, tables),
            *_rules_of_partitions(pipeline, tables),
            *_rules_without_columns(pipeline.rules, tables),
            *(line for shape in tables for line in _table_checks(pipeline, shape)),
            *_clashes(pipeline, tables),
        ]
        for line in found:
            yield Check("rules", line.level, f"{name}: {line.message}", line.hint)
        if not any(line.level == "fail" for line in found):
            counts = f"{len(pipeline.rules)} rules and {len(pipeline.routes)} routes"
            yield ok("rules", f"{name}: {counts} fit {len(tables)} tables")


def needs_spark(rule: Rule) -> bool:
    """Whether only Spark can tell if the rule means something: SQL, and some patterns."""
    given = rule.filter or rule.transform
    if given is not None and given.sql is not None:
        return True
    if rule.transform is None or rule.transform.regex is None:
        return False
    try:
        return not translate(rule.transform.regex.pattern, rule.transform.regex.replace).certain
    except ConfigError:
        return False  # told without Spark


def _matches(patterns: TablePatterns, shape: Shape) -> bool:
    """A partition is meant by its root's name, which its rows have in pipelines."""
    return patterns.matches(*shape.home_name)


def _meant(item: Rule | Route, shape: Shape) -> bool:
    return _matches(TablePatterns([item.table]), shape)


def _patterns_without_tables(pipeline: Pipeline, tables: Sequence[Shape]) -> Iterator[Check]:
    names = [(shape.schema, shape.table) for shape in tables]
    partitions = {(shape.schema, shape.table) for shape in tables if shape.root_oid}
    for place, item in numbered(pipeline.rules, pipeline.routes):
        patterns = TablePatterns([item.table])
        if any(patterns.matches(*name) for name in partitions):
            continue  # told apart
        if not any(_meant(item, shape) for shape in tables):
            hint = nearest(item.table, names) if is_literal(item.table) else ""
            yield warn("rules", f"{place}: {item.table} matches no table of the pipeline", hint)


def _rules_of_partitions(pipeline: Pipeline, tables: Sequence[Shape]) -> Iterator[Check]:
    for _, error in misplaced(numbered(pipeline.rules, pipeline.routes), tables):
        yield fail("rules", error.message, _sentence(error.hint))


def _rules_without_columns(rules: Sequence[Rule], tables: Sequence[Shape]) -> Iterator[Check]:
    """A rule that skips tables without its column and finds none with it: misspelt."""
    for at, rule in enumerate(rules, start=1):
        meant = [shape for shape in tables if _meant(rule, shape)]
        if not meant or not is_optional(rule):
            continue
        earlier = {new for other in rules[: at - 1] for new in (other.rename or {}).values()}
        known = {column.name for shape in meant for column in shape.columns} | earlier
        for name in mentioned(rule):
            if name not in known:
                text = f"rule {at}: no table that {rule.table} matches has a column {name}"
                yield fail("rules", text, "Correct the column's name.")


@dataclass(frozen=True, slots=True)
class _State:
    """A table's columns between two rules; ``keys`` maps present names of key columns."""

    fields: list[Field]
    keys: dict[str, str]


def _table_checks(pipeline: Pipeline, shape: Shape) -> Iterator[Check]:
    """Walk through the rules as a row does; the first that does not fit ends the walk."""
    fields = [Field(c.name, kind_of(c.base_oid or c.type_oid)) for c in shape.columns]
    identifying = [shape.columns[index].name for index in shape.keys]
    state = _State(fields, {name: name for name in identifying})
    for at, rule in enumerate(pipeline.rules, start=1):
        if not _meant(rule, shape):
            continue
        place = f"rule {at} ({shape.name})"
        try:
            after = bind(rule, state.fields)
        except ConfigError as error:
            yield fail("rules", f"{place}: {error.message}", _sentence(error.hint))
            return
        names = [field.name for field in state.fields]
        if applies(rule, names):
            yield from _key_checks(rule, state, place, stateful=_keeps_state(pipeline.sink))
        left = surviving(rule, names) if applies(rule, names) else {name: name for name in names}
        keys = {left[now]: old for now, old in state.keys.items() if now in left}
        state = _State(after, keys)
    yield from _route_check(pipeline, shape, state)


def _key_checks(rule: Rule, state: _State, place: str, *, stateful: bool) -> Iterator[Check]:
    touched = set(mentioned(rule)) & state.keys.keys()
    if rule.transform is not None and touched:
        error = key_changed(rule.transform)
        yield fail("rules", f"{place}: {error.message}", _sentence(error.hint))
    if rule.include is not None:
        touched = state.keys.keys() - set(rule.include)
    if stateful and touched and (rule.exclude is not None or rule.include is not None):
        text = f"{place}: it takes away {', '.join(sorted(touched))}, which is part of the key"
        yield fail("rules", text, "The target finds its rows by the key: keep it.")


def _keeps_state(sink: SinkSettings) -> bool:
    """Whether a target holds rows that later changes have to find."""
    return isinstance(sink, DeltaSettings | PostgresSettings) and sink.mode != "history"


def _route_check(pipeline: Pipeline, shape: Shape, state: _State) -> Iterator[Check]:
    route = route_of(pipeline.routes, *shape.home_name)
    if route is None:
        return
    names = [field.name for field in state.fields]
    missing = [name for name in route.rename if name not in names]
    if missing and is_literal(route.table):
        yield fail("rules", f"route of {shape.name}: there is no column {missing[0]}")
    try:
        renamed(route.rename, names)
    except ConfigError as error:
        yield fail("rules", f"route of {shape.name}: {error.message}", _sentence(error.hint))


def _clashes(pipeline: Pipeline, tables: Sequence[Shape]) -> Iterator[Check]:
    """Two tables that would be written to one."""
    taken: dict[tuple[str, str], str] = {}
    for shape in tables:
        if shape.root_oid:
            continue  # partitions of one table may well go to one place
        route = route_of(pipeline.routes, shape.schema, shape.table)
        target = route.target(shape.schema, shape.table) if route else (shape.schema, shape.table)
        if target in taken:
            text = f"{taken[target]} and {shape.name} both go to {'.'.join(target)}"
            # Of events nothing is lost; a table of the lake is of one table of the source.
            one_to_one = isinstance(pipeline.sink, DeltaSettings | PostgresSettings)
            level = fail if one_to_one else warn
            yield level("rules", text, "Give one of them another route.")
        taken[target] = shape.name


def _sentence(hint: str) -> str:
    return f"{hint[:1].upper()}{hint[1:]}." if hint and not hint.endswith((".", "?")) else hint
