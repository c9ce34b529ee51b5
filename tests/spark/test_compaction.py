"""Many events of a key become one row, and nothing of what they said is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgtide import oids
from pgtide.shape import Column, Shape
from pgtide.spark.compaction import Traits, compact
from pgtide.spark.layout import Layout

pytestmark = pytest.mark.compiled

SCHEMA = (
    "op string, before array<string>, after array<string>, unchanged array<int>, lsn bigint, "
    "seq bigint, xid bigint, committed_at timestamp, shape bigint"
)
SHAPE = Shape(
    oid=1,
    schema="public",
    table="t",
    columns=(
        Column("id", oids.INT4, key=True, identity=True),
        Column("a", oids.TEXT),
        Column("big", oids.TEXT),
    ),
    id=1,
)
LAYOUT = Layout.of(SHAPE, {1: SHAPE})
ALL = Traits(old_rows=True, unsent=(1, 2))

Row = list[str | None]


def insert(*row: str | None) -> dict[str, Any]:
    return {"op": "insert", "after": list(row)}


def delete(key: str) -> dict[str, Any]:
    return {"op": "delete", "before": [key, None, None]}


def update(
    *row: str | None, old: str | None = None, unsent: list[int] | None = None
) -> dict[str, Any]:
    before = None if old is None else [old, None, None]
    return {"op": "update", "before": before, "after": list(row), "unchanged": unsent}


def frame(spark: SparkSession, events: list[dict[str, Any]]) -> DataFrame:
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    rows = [
        {"lsn": number + 1, "seq": 0, "shape": 1, **event} for number, event in enumerate(events)
    ]
    return spark.createDataFrame([[row.get(name) for name in names] for row in rows], SCHEMA)


def state(spark: SparkSession, *events: dict[str, Any], traits: Traits = ALL) -> dict[int, Any]:
    """By key: None for a deleted row, else the new row, what is unchanged and from which key."""
    rows = compact(frame(spark, list(events)), LAYOUT, traits).collect()
    return {
        row["k0"]: None
        if row["op"] == "delete"
        else (row["after"], row["unchanged"], row["origin"] and row["origin"]["k0"])
        for row in rows
    }


def test_the_last_state_of_each_key_remains(spark: SparkSession) -> None:
    found = state(
        spark,
        update("1", "u", "-"),
        delete("1"),
        insert("1", "again", "-"),
        update("2", "x", "-"),
        update("2", "y", "-"),
        update("2", "z", "-"),
        insert("3", "three", "-"),
        delete("2"),
        insert("2", "new", "-"),
        delete("1"),
        traits=Traits(old_rows=False, unsent=()),
    )
    assert found == {
        1: None,
        2: (["2", "new", "-"], None, None),
        3: (["3", "three", "-"], None, None),
    }


def test_values_that_were_not_sent_come_from_where_the_row_was(spark: SparkSession) -> None:
    found = state(
        spark,
        # filled from the batch; 1 has nothing to fill from
        update("1", "a", None, unsent=[2]),
        update("1", None, None, unsent=[1, 2]),
        # a NULL that was sent is a value
        insert("2", None, "big2"),
        update("2", None, None, unsent=[1, 2]),
        # nothing of the row before it was deleted
        insert("3", "old", "old"),
        delete("3"),
        insert("3", "new", None),
        update("3", "newer", None, unsent=[2]),
        # nor of one whose insert a route left out
        insert("13", "old", "old"),
        delete("13"),
        update("13", "new", None, unsent=[2]),
        # a move whose values are in the batch, then one whose values only the target has
        insert("4", "four", "big4"),
        update("5", "five", None, old="4", unsent=[2]),
        update("7", None, None, old="6", unsent=[1, 2]),
        # a chain of moves: part of it from the batch, part of it from the target
        update("8", "eight", None, unsent=[2]),
        update("9", None, None, old="8", unsent=[1, 2]),
        update("10", None, None, old="9", unsent=[1, 2]),
        # back to where it came from
        insert("11", "eleven", "big11"),
        update("12", None, None, old="11", unsent=[1, 2]),
        update("11", None, None, old="12", unsent=[1, 2]),
    )
    assert found == {
        1: (["1", "a", None], [2], None),
        2: (["2", None, "big2"], None, None),
        3: (["3", "newer", None], None, None),
        4: None,
        5: (["5", "five", "big4"], None, None),
        6: None,
        7: (["7", None, None], [1, 2], 6),
        8: None,
        9: None,
        10: (["10", "eight", None], [2], 8),
        11: (["11", "eleven", "big11"], None, None),
        12: None,
        13: (["13", "new", None], [2], None),
    }


def test_equal_keys_are_one_key_however_they_are_written(spark: SparkSession) -> None:
    column = Column("id", oids.NUMERIC, typmod=(10 << 16 | 2) + 4, key=True, identity=True)
    shape = Shape(1, "public", "t", (column, *SHAPE.columns[1:]), id=1)
    events = frame(spark, [insert("1.0", "a", "b"), update("1.00", "c", "b", old="1.0")])
    rows = compact(events, Layout.of(shape, {1: shape}), ALL).collect()
    assert [(str(row["k0"]), row["op"], row["after"][1]) for row in rows] == [
        ("1.00", "update", "c")
    ]


@pytest.mark.parametrize("array", [False, True])
def test_keys_that_spark_cannot_compare_are_texts(spark: SparkSession, array: bool) -> None:
    hstore = Column("id", 17000, type_name="public.hstore", key=True, identity=True)
    arrays = replace(hstore, type_oid=17001, type_name="public.hstore[]", element_oid=17000)
    shape = Shape(1, "public", "t", (arrays if array else hstore, *SHAPE.columns[1:]), id=1)
    first, second = ('{"\\"a\\"=>\\"1\\""}', "{}") if array else ('"a"=>"1"', "")
    events = frame(spark, [insert(first, "a", "b"), update(second, "c", "b", old=first)])
    rows = compact(events, Layout.of(shape, {1: shape}), ALL).collect()
    assert {row["k0"]: row["op"] for row in rows} == {first: "delete", second: "update"}


def test_the_old_row_fills_in_what_a_full_identity_did_not_send(spark: SparkSession) -> None:
    shape = Shape(1, "public", "t", SHAPE.columns, "f", id=1)
    event = {
        "op": "update",
        "before": ["1", "old", "big"],
        "after": ["1", "new", None],
        "unchanged": [2],
    }
    (row,) = compact(frame(spark, [event]), Layout.of(shape, {1: shape}), ALL).collect()
    assert (row["after"], row["unchanged"]) == (["1", "new", "big"], None)
