"""The short way to the last state of each key makes the same lines as Spark's SQL."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pgtide import oids
from pgtide.config.rules import Route, Rule
from pgtide.errors import LogError
from pgtide.log.schema import FILE_SCHEMA
from pgtide.position import Lsn, Position
from pgtide.rules import compile_rules
from pgtide.shape import Column, Shape
from pgtide.sinks.postgres.plain_state import COLUMNS, PlainTables, States
from pgtide.sinks.postgres.staged_rows import StagedRows, TableRows
from pgtide.spark.compaction import Traits
from pgtide.spark.layout import Layout

SPARK_TYPES = (
    "lsn bigint, seq bigint, op string, shape bigint, before array<string>, after array<string>,"
    " unchanged array<int>"
)
ARROW_TYPES = pa.schema([FILE_SCHEMA.field(name) for name in COLUMNS])


def column(name: str, *, key: bool = False) -> Column:
    return Column(name, oids.TEXT, type_name="text", key=key, identity=key)


ID, PAIR, VALUE = column("id", key=True), column("pair", key=True), column("value")
ROOT = Shape(1, "public", "parted", (ID, VALUE), id=1)
PARTITION = Shape(
    2, "public", "part", (VALUE, ID), root_oid=1, root_schema="public", root_table="parted", id=2
)
PAIRED = Shape(3, "public", "paired", (PAIR, VALUE, ID), replica_identity="f", id=3)
KEYLESS = Shape(4, "s", "keyless", (VALUE, VALUE), id=4)
FORMER = Shape(1, "public", "parted", (ID,), id=5)  # before it got its other column
EMPTY = Shape(6, "s", "empty", (), id=6)
SHAPES = {shape.id: shape for shape in (ROOT, PARTITION, PAIRED, KEYLESS, FORMER, EMPTY)}
CUTS = (Position(Lsn(160), 1), Position(Lsn(240)))


def table(*shapes: Shape, once: bool = False) -> TableRows:
    layout = Layout.of(shapes[0], SHAPES)
    rules = compile_rules([], [], *layout.table)
    return TableRows(layout, shapes, Traits(unsent=()), once, rules)


TABLES = [table(FORMER), table(ROOT, PARTITION), table(PAIRED)]
TABLES += [table(KEYLESS, once=True), table(EMPTY, once=True)]

keys = st.sampled_from(["1", "2", "12", "", "x" * 9, "é\t"])
values = st.none() | st.sampled_from(["", "v", "tab\t", "line\n\r", r"back\slash \N", "ü€😀"])


@st.composite
def events(draw: Any) -> list[Any]:
    """Events in any order whatever: what they mean to the source is the same for both ways."""
    found = []
    for number in range(draw(st.integers(0, 30))):
        shape = SHAPES[draw(st.integers(1, len(SHAPES)))]
        kinds = ["insert", "read", *(["update", "delete"] if shape.keys else [])]
        op = draw(st.sampled_from(kinds))
        before = after = None
        if op != "delete":
            after = [draw(keys if c.key else values) for c in shape.columns]
        if op == "delete" or (op == "update" and draw(st.booleans())):
            whole = shape.replica_identity == "f"
            before = [
                draw(keys) if c.key else draw(values) if whole else None for c in shape.columns
            ]
        found.append((8 * (number // 3) + 96, number % 3, op, shape.id, before, after))
    mixed: list[Any] = draw(st.permutations(found))
    return mixed


def by_spark(spark: SparkSession, rows: list[Any]) -> list[tuple[int, bytes]]:
    frame = spark.createDataFrame([(*row, None) for row in rows], SPARK_TYPES)
    lines = StagedRows("p", TABLES, CUTS).lines(frame).collect()
    return sorted((row["stage"], row["line"].encode()) for row in lines)


def arrow(rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    return pa.table([*map(list, columns)], schema=ARROW_TYPES)


def plain() -> PlainTables:
    return PlainTables.of(TABLES, CUTS)


def in_shares(rows: list[Any], shares: int, piece: int) -> list[tuple[int, bytes]]:
    """The lines of all shares, each of which sees all rows, so many at a time."""
    tables, found = plain(), []
    pieces = [arrow(rows[n : n + piece]) for n in range(0, len(rows), piece)] or [arrow([])]
    for share in range(shares):
        held = [tables.compacted(tables.states(p), share, shares) for p in pieces]
        for stage, text, count in tables.lines(tables.compacted(States.joined(held))):
            lines = bytes(text).split(b"\n")[:-1]
            assert len(lines) == count
            found += [(stage, line + b"\n") for line in lines]
    return sorted(found)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=events(), shares=st.integers(1, 3), piece=st.integers(1, 30))
def test_the_same_lines(spark: SparkSession, rows: list[Any], shares: int, piece: int) -> None:
    assert in_shares(rows, shares, piece) == by_spark(spark, rows)


def test_memory_of_rows_with_small_values() -> None:
    """What is known of them takes more than these, and is held once: lines are made in parts."""
    tables, count = plain(), 500_000
    one = arrow([(96, 0, "update", 1, None, ["1", None])])
    states = tables.states(one.take(np.zeros(count, np.int64)))
    assert states.nbytes > 3 * states.values.nbytes
    list(tables.lines(states.take(np.arange(1))))  # compiled code takes memory of its own
    most, lines, held = 0, 0, pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for _, _, number in tables.lines(states):
            lines += number
            most = max(most, pa.total_allocated_bytes() - held)
        most += tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == count
    assert most < states.nbytes


def test_a_row_that_does_not_fit_its_shape() -> None:
    for damaged in (
        (96, 0, "update", 1, ["1"], ["1", "v"]),
        (96, 0, "insert", 3, None, ["1", "v"]),
        (96, 0, "insert", 1, None, None),
        (96, 0, "delete", 1, None, ["1", "v"]),
    ):
        with pytest.raises(LogError, match="does not fit its shape") as refused:
            plain().states(arrow([(88, 0, "insert", 1, None, ["1", "v"]), damaged]))
        assert refused.value.detail == "It is the row at 0/60:0."


def test_rows_that_need_more() -> None:
    """Values that were not sent, and tables without a key that change."""
    unsent = TableRows(TABLES[1].layout, (ROOT,), Traits(unsent=(1,)), False, TABLES[1].rules)
    assert not unsent.plain
    assert not table(KEYLESS).plain
    with pytest.raises(AssertionError):
        PlainTables.of([*TABLES, unsent], CUTS)


RULES: list[dict[str, Any]] = [
    {"transform": {"column": "value", "mask": {}}},
    {"transform": {"column": "value", "null": True}, "operations": ["delete"]},
    {"filter": {"column": "value", "operator": "is_null"}},
    {"filter": {"sql": "value IS NULL"}},
    {"exclude": ["value"]},
    {"include": ["id"]},
    {"rename": {"value": "worth"}},
    {"exclude": ["nowhere"], "optional": True},
]
ROUTES: list[dict[str, Any]] = [{"operations": ["insert"]}, {"rename": {"value": "worth"}}]


@pytest.mark.parametrize("kind", ["rule", "route"])
@pytest.mark.parametrize("once", [False, True], ids=["changes", "inserts"])
def test_rules_are_never_passed_by(kind: str, once: bool) -> None:
    """Neither of a table whose rows are all new, nor of one among others, nor of a partition."""
    for way in RULES if kind == "rule" else ROUTES:
        rules = [Rule(table="public.parted", **way)] if kind == "rule" else []
        routes = [Route(table="public.parted", **way)] if kind == "route" else []
        for shapes in ((ROOT,), (PARTITION,), (ROOT, PARTITION)):
            plain = table(*shapes, once=once)
            ruled = replace(plain, rules=compile_rules(rules, routes, *plain.layout.table))
            assert plain.plain
            assert not ruled.plain, way
            with pytest.raises(AssertionError):
                PlainTables.of([TABLES[1], ruled], CUTS)
    elsewhere = compile_rules([], [Route(table="*.*", to="other.*")], "public", "parted")
    assert replace(plain, rules=elsewhere).plain
