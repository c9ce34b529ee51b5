"""ADD COLUMN: rows that a table of the lake has get what types and rules make of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.config.rules import Rule
from pgtide.errors import PipelineError, Unrepresentable
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.steps import Reshaped
from pgtide.position import Lsn, Position
from pgtide.rules import compile_rules
from pgtide.shape import Column, Shape
from pgtide.sinks.added_columns import AddedColumns
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until
from tests.sinks.lakes import deliver, lose_checkpoint, rows, table


def run(spark: SparkSession, captured: Captured, mode: str, **pipeline: Any) -> None:
    """Bring what the log has into the lake."""
    sink = {"type": "delta", "path": str(captured.directory / mode), "mode": mode}
    settings = {"sink": sink, **pipeline}
    config = Config.model_validate({**captured.settings, "pipelines": {mode: settings}})
    PipelineRun(spark, config, mode).run(until_current=True)


def optional(table: str, **rule: Any) -> dict[str, Any]:
    """A rule for a table that gets the column later."""
    return {"table": f"public.{table}", "optional": True, **rule}


def transform(table: str, column: str, **way: Any) -> dict[str, Any]:
    return optional(table, transform={"column": column, **way})


@pytest.mark.parametrize("mode", ["mirror", pytest.param("scd2", marks=pytest.mark.slow)])
def test_defaults_that_no_type_holds(spark: SparkSession, captured: Captured, mode: str) -> None:
    captured.run(
        """CREATE TABLE empty (id int PRIMARY KEY);
ALTER TABLE empty ADD till date DEFAULT 'infinity';
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
"""
    )
    settings: dict[str, Any] = {"unbounded_numeric": "decimal(5,1)"}
    deliver(spark, captured, mode, **settings)  # there is no row that could have the default
    captured.run(
        """ALTER TABLE t ADD till date DEFAULT 'infinity', ADD share numeric(5,2) DEFAULT 'NaN',
ADD total numeric DEFAULT 1.55, ADD hidden date DEFAULT '-infinity', ADD fine int DEFAULT 7;
INSERT INTO t VALUES (3, '2024-02-29', 1, 1, NULL, 1);
"""
    )
    rules = [transform("t", "hidden", null=True)]
    with pytest.raises(Unrepresentable) as caught:
        deliver(spark, captured, mode, rules=rules, **settings)
    (command,) = [e for e in captured.events("ddl") if "share" in (e.payload or {})["statement"]]
    assert f"at {command.position}." in caught.value.detail
    assert "Column public.t." in caught.value.detail
    assert "infinity" not in str(caught.value)
    for _ in range(2):
        deliver(spark, captured, mode, rules=rules, on_unrepresentable="null", **settings)
        lose_checkpoint(captured, mode)
    found = table(spark, captured, mode, "t").select("id", "till", "share", "total", "fine")
    assert sorted(tuple(row) for row in found.collect())[:2] == [
        (1, None, None, None, 7),
        (2, None, None, None, 7),
    ]
    kept = spark.read.format("delta").load(f"{captured.directory}/{mode}/_pgtide/quarantine")
    columns = ("table", "column", "key", "lsn", "seq", "text", "reason")
    at = (int(command.position.lsn), command.position.seq)
    assert sorted(tuple(row) for row in kept.select(*columns).collect()) == [
        ("t", "share", None, *at, "NaN", "type"),
        ("t", "till", None, *at, "infinity", "type"),
        ("t", "total", None, *at, "1.55", "type"),
    ]


RULES = [
    transform("own", "secret", mask={}),
    transform("own", "card", hash={"salt": "s"}),
    transform("own", "n", sql="cast(n * 2.5 as decimal(6,2))"),
    transform("own", "gone", null=True),
    optional("own", rename={"plain": "fancy"}),
    transform("other", "nick", sql="concat(name, nick)"),
    transform("other", "secret", mask={}),
    transform("alias", "nick", sql="upper(name)"),
    optional("sieve", filter={"column": "tenant", "operator": "eq", "value": 1}),
    transform("bag", "nick", sql="concat(name, nick)"),
]
SCRIPT = """CREATE TABLE own (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY, name text);
CREATE TABLE alias (id int PRIMARY KEY, name text);
CREATE TABLE sieve (id int PRIMARY KEY);
CREATE TABLE bag (name text);
INSERT INTO own VALUES (1);
INSERT INTO other VALUES (1, 'a');
INSERT INTO alias VALUES (1, 'a');
INSERT INTO sieve VALUES (1), (2);
INSERT INTO bag VALUES ('a');
ALTER TABLE own ADD secret text DEFAULT 'swordfish', ADD card text DEFAULT '1234',
ADD n int DEFAULT 3, ADD gone text DEFAULT 'x', ADD plain timestamptz DEFAULT '2024-02-29 12:00Z';
ALTER TABLE other ADD nick text DEFAULT 'nick', ADD secret text DEFAULT 'swordfish';
ALTER TABLE alias ADD nick text DEFAULT 'nick';
ALTER TABLE sieve ADD tenant int DEFAULT 2;
ALTER TABLE bag ADD nick text DEFAULT 'nick';
INSERT INTO sieve VALUES (3, 1);
"""


def test_rules_apply_to_defaults(spark: SparkSession, captured: Captured) -> None:
    """To a default alone where that suffices; else rows are read again, which is asked for once."""
    store = RefreshStore(Storage(captured.config.log.path))
    tables = [f"public.{name}" for name in ("own", "other", "alias", "sieve")]
    captured.run(SCRIPT)
    captured.capture()
    for _ in range(2):
        run(spark, captured, "mirror", rules=RULES, tables=tables)
        lose_checkpoint(captured, "mirror")
        own = table(spark, captured, "mirror", "own")
        moment = "unix_seconds(fancy) AS fancy"
        found = own.selectExpr("id", "secret", "card", "n", "gone", moment).collect()
        card = hashlib.sha256(b"s1234").hexdigest()
        assert found == [(1, "s*******h", card, Decimal("7.50"), None, 1709208000)]
        assert own.schema["n"].dataType.simpleString() == "decimal(6,2)"
        other = table(spark, captured, "mirror", "other")
        assert rows(other, "id", "nick", "secret") == [(1, None, "s*******h")]
        assert rows(table(spark, captured, "mirror", "alias"), "id", "nick") == [(1, None)]
        sieve = table(spark, captured, "mirror", "sieve")
        assert rows(sieve, "id", "tenant") == [(1, None), (2, None), (3, 1)]
        asked = store.requests()
        assert sorted(request.table for request in asked) == sorted({*tables} - {"public.own"})
        assert {(request.reason, request.whole) for request in asked} == {("ddl", True)}

    def refreshed() -> bool:
        captured.capture()
        return not any(store.is_open(request.id) for request in asked)

    wait_until(refreshed, "the tables to be read again")
    run(spark, captured, "mirror", rules=RULES, tables=tables)
    assert rows(table(spark, captured, "mirror", "other"), "nick", "secret") == [
        ("anick", "s*******h")
    ]
    assert rows(table(spark, captured, "mirror", "alias"), "nick") == [("A",)]
    assert rows(table(spark, captured, "mirror", "sieve"), "id", "tenant") == [(3, 1)]
    assert len(store.requests()) == 3
    lose_checkpoint(captured, "mirror")
    with pytest.raises(PipelineError, match="cannot be read again") as caught:
        run(spark, captured, "mirror", rules=RULES, tables=["public.bag"])
    assert "public.bag" in caught.value.detail
    assert "nick" not in str(caught.value)
    # Nothing is left that would have to be read.
    captured.run("TRUNCATE bag;\nINSERT INTO bag VALUES ('b', 'x');")
    captured.capture()
    lose_checkpoint(captured, "mirror")
    run(spark, captured, "mirror", rules=RULES, tables=["public.bag"])
    assert rows(table(spark, captured, "mirror", "bag"), "nick") == [("bx",)]


@pytest.mark.slow
def test_partitions_and_versions_are_read_again(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20);
INSERT INTO t VALUES (1, 'a'), (11, 'b'), (12, 'c');
ALTER TABLE t ADD nick text DEFAULT 'nick', ADD tenant text DEFAULT 'in';
INSERT INTO t VALUES (13, 'd', 'x', 'out');
"""
    )
    captured.capture()
    rules = [
        transform("t", "nick", sql="concat(name, nick)"),
        optional("t", filter={"column": "tenant", "operator": "ne", "value": "out"}),
    ]
    store = RefreshStore(Storage(captured.config.log.path))
    for mode in ("mirror", "scd2"):
        run(spark, captured, mode, rules=rules)
        assert {row["nick"] for row in table(spark, captured, mode, "t").collect()} == {None}
    (asked,) = store.requests()
    assert asked.table == "public.t"

    def refreshed() -> bool:
        captured.capture()
        return not store.is_open(asked.id)

    wait_until(refreshed, "the table to be read again")
    for mode in ("mirror", "scd2"):
        run(spark, captured, mode, rules=rules)
        now = "is_current" if mode == "scd2" else "true"
        found = table(spark, captured, mode, "t").filter(now).select("id", "nick", "tenant")
        assert sorted(tuple(row) for row in found.collect()) == [
            (1, "anick", "in"),
            (11, "bnick", "in"),
            (12, "cnick", "in"),
        ]


def all_refreshed(captured: Captured, store: RefreshStore) -> bool:
    captured.capture()
    return not any(store.is_open(request.id) for request in store.requests())


NULL_RULES = [
    transform("own", "note", sql="coalesce(note, 'none')"),
    transform("own", "hidden", mask={}),
    transform("bag", "note", sql="coalesce(note, 'none')"),
    transform("other", "nick", sql="coalesce(nick, name)"),
    optional("sieve", filter={"column": "tenant", "operator": "eq", "value": 1}),
    optional("left_out", filter={"column": "tenant", "operator": "gt", "value": 0}),
    optional("left_out", exclude=["tenant"]),
]
NULL_SCRIPT = """CREATE TABLE own (id int PRIMARY KEY);
CREATE TABLE bag (name text);
CREATE TABLE other (id int PRIMARY KEY, name text);
CREATE TABLE sieve (id int PRIMARY KEY);
CREATE TABLE left_out (id int PRIMARY KEY);
INSERT INTO own VALUES (1);
INSERT INTO bag VALUES ('a'), ('a');
INSERT INTO other VALUES (1, 'a');
INSERT INTO sieve VALUES (1), (2);
INSERT INTO left_out VALUES (1);
ALTER TABLE own ADD note text, ADD hidden text, ADD plain text;
ALTER TABLE bag ADD note text;
ALTER TABLE other ADD nick text;
ALTER TABLE sieve ADD tenant int;
ALTER TABLE left_out ADD tenant int;
INSERT INTO sieve VALUES (3, 1);
"""


@pytest.mark.parametrize("mode", ["mirror", pytest.param("scd2", marks=pytest.mark.slow)])
def test_rules_apply_to_null(spark: SparkSession, captured: Captured, mode: str) -> None:
    """A column without a default is one with the default NULL, where rules look at it."""
    store = RefreshStore(Storage(captured.config.log.path))
    tables = ["public.own", "public.other", "public.sieve", "public.left_out"]
    tables += ["public.bag"] if mode == "mirror" else []
    captured.run(NULL_SCRIPT)
    captured.capture()
    run(spark, captured, mode, rules=NULL_RULES, tables=tables)
    own = table(spark, captured, mode, "own")
    assert rows(own, "id", "note", "hidden", "plain") == [(1, "none", None, None)]
    if mode == "mirror":
        bag = table(spark, captured, mode, "bag")
        assert rows(bag, "name", "note") == [("a", "none"), ("a", "none")]
    assert sorted(request.table for request in store.requests()) == sorted(tables[1:4])
    wait_until(lambda: all_refreshed(captured, store), "the tables to be read again")
    run(spark, captured, mode, rules=NULL_RULES, tables=tables)
    now = "is_current" if mode == "scd2" else "true"
    other = table(spark, captured, mode, "other").filter(now)
    assert rows(other, "id", "nick") == [(1, "a")]
    assert rows(table(spark, captured, mode, "sieve").filter(now), "id") == [(3,)]
    assert rows(table(spark, captured, mode, "left_out").filter(now), "id") == []


def test_a_filter_lets_in_what_it_kept_out(spark: SparkSession, captured: Captured) -> None:
    """Rows that the table never had may pass by a new column of the name."""
    store = RefreshStore(Storage(captured.config.log.path))
    wanted = {"column": "tenant", "operator": "eq", "value": 1}
    rules = [optional(name, filter=wanted) for name in ("sieve", "fresh")]
    captured.run(
        """CREATE TABLE sieve (id int PRIMARY KEY, tenant int);
CREATE TABLE fresh (name text);
INSERT INTO sieve VALUES (1, 2), (2, 2);
"""
    )
    captured.capture()
    run(spark, captured, "mirror", rules=rules)
    assert rows(table(spark, captured, "mirror", "sieve"), "id") == []
    captured.run(
        """ALTER TABLE sieve DROP tenant, ADD tenant int DEFAULT 1;
ALTER TABLE fresh ADD tenant int DEFAULT 1;
"""
    )
    captured.capture()
    run(spark, captured, "mirror", rules=rules)
    (asked,) = store.requests()
    assert asked.table == "public.sieve", "nothing has ever come to the other one"
    wait_until(lambda: all_refreshed(captured, store), "the table to be read again")
    run(spark, captured, "mirror", rules=rules)
    sieve = table(spark, captured, "mirror", "sieve")
    assert sorted(rows(sieve, "id", "tenant")) == [(1, 1), (2, 1)]


def test_columns_that_no_rule_looks_at(spark: SparkSession) -> None:
    """They cost nothing: nobody asks what there is."""
    columns = tuple(Column(name, 25, attnum=n) for n, name in enumerate(("id", "a", "b"), 1))
    layout = Layout.of(Shape(7, "public", "t", columns, id=1), {})
    ways: list[dict[str, Any]] = [{"column": "a", "mask": {}}, {"column": "id", "sql": "id || 'x'"}]
    rules = compile_rules(
        [Rule.model_validate({"table": "t", "transform": w}) for w in ways], [], "public", "t"
    )
    step = Reshaped(("public", "t"), Position(Lsn(1)), layout, {2: None, 3: None})
    assert not AddedColumns(spark, step, rules, CellReader(layout)).names
    given = replace(step, added={2: None, 3: "x"})
    assert AddedColumns(spark, given, rules, CellReader(layout)).names == {"b"}
