"""``pivot`` has a row for each field that a change concerns, once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtide.errors import ConfigError, PipelineError, Unrepresentable
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, table

TEXTS = ("change_field", "old_value", "new_value", "crud_type")


def told(frame: DataFrame, *keys: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*keys, *TEXTS).collect()), key=str)


def test_fields(spark: SparkSession, captured: Captured) -> None:
    """All operations, DDL and TRUNCATE in mid-transaction, a key change, a lost checkpoint."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, long text);
ALTER TABLE t REPLICA IDENTITY FULL;
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 'x', 1.50, repeat('z', 3000));
UPDATE t SET a = 'y' WHERE id = 1;
UPDATE t SET a = 'y' WHERE id = 1;
"""
    )
    deliver(spark, captured, "pivot")
    z = "z" * 3000
    wanted: list[tuple[Any, ...]] = [
        (1, "a", "x", "y", "u"),
        (1, "a", None, "x", "c"),
        (1, "b", None, "1.50", "c"),
        (1, "long", None, z, "c"),
    ]
    assert told(table(spark, captured, "pivot", "t"), "id") == sorted(wanted, key=str)
    captured.execute(
        """UPDATE t SET b = NULL WHERE id = 1;
        ALTER TABLE t RENAME COLUMN id TO number;
        UPDATE t SET number = 2 WHERE number = 1;
        DELETE FROM t;
        INSERT INTO t VALUES (3, 'w', 0, NULL);
        TRUNCATE t;
        INSERT INTO t VALUES (4, NULL, NULL, NULL);"""
    )
    wanted += [
        (1, "b", "1.50", None, "u"),
        (2, "number", "1", "2", "u"),
        (2, "a", "y", None, "d"),
        (2, "b", None, None, "d"),
        (2, "long", z, None, "d"),
        (3, "a", None, "w", "c"),
        (3, "b", None, "0", "c"),
        (3, "long", None, None, "c"),
        (4, "a", None, None, "c"),
        (4, "b", None, None, "c"),
        (4, "long", None, None, "c"),
    ]
    for _ in range(2):
        deliver(spark, captured, "pivot")
        frame = table(spark, captured, "pivot", "t")
        assert told(frame, "number") == sorted(wanted, key=str)
        lose_checkpoint(captured, "pivot")
    times = {
        row["crud_type"]: [
            row[f"datetime_{name}"] is not None
            for name in ("created", "updated", "deleted", "inserted")
        ]
        for row in frame.collect()
    }
    assert times == {
        "c": [True, False, False, True],
        "u": [False, True, False, True],
        "d": [False, False, True, True],
    }


def test_all_fields_of_chosen_columns(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (owner text, a int, b int, c int);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES ('me', 1, 1, 1);
UPDATE t SET a = 2, c = 2;
"""
    )
    pivot = {"key": ["owner"], "columns": ["a", "b"], "fields": "all"}
    deliver(spark, captured, "pivot", pivot=pivot)
    assert told(table(spark, captured, "pivot", "t"), "owner") == [
        ("me", "a", "1", "2", "u"),
        ("me", "a", None, "1", "c"),
        ("me", "b", "1", "1", "u"),
        ("me", "b", None, "1", "c"),
    ]


@pytest.mark.slow
def test_times_are_no_texts(spark: SparkSession, captured: Captured) -> None:
    """Under ``on_unrepresentable: text`` keys may be texts; a time has its type, or is refused."""
    captured.run("CREATE TABLE t (day date PRIMARY KEY, made timestamp, v int);\n")
    captured.run("INSERT INTO t VALUES ('infinity', '2024-02-29 01:00', 7);\n")
    settings: dict[str, Any] = {"pivot": {"created": "made"}, "on_unrepresentable": "text"}
    deliver(spark, captured, "pivot", **settings)
    found = table(spark, captured, "pivot", "t")
    seconds = F.unix_timestamp("datetime_created")
    (row,) = found.select("day", "change_field", "new_value", seconds).collect()
    assert tuple(row) == ("infinity", "v", "7", 1709168400)
    captured.run("INSERT INTO t VALUES ('2024-03-01', 'infinity', 8);\n")
    with pytest.raises(Unrepresentable, match="does not fit"):
        deliver(spark, captured, "pivot", **settings)


def test_key_columns_that_differ_in_case(spark: SparkSession, captured: Captured) -> None:
    captured.run('CREATE TABLE t (id int, "Id" int, crud_type int, PRIMARY KEY (id, "Id"));\n')
    captured.run("INSERT INTO t VALUES (1, 2, 3);\n")
    deliver(spark, captured, "pivot")
    frame = table(spark, captured, "pivot", "t")
    assert told(frame, "id", "Id__2") == [(1, 2, "crud_type", None, "3", "c")]


def test_refusals(spark: SparkSession, captured: Captured) -> None:
    captured.run('CREATE TABLE "T" (id int PRIMARY KEY, v int);\nCREATE TABLE k (v int);\n')
    captured.run('INSERT INTO "T" VALUES (1, 1);\nINSERT INTO k VALUES (1);\n')
    with pytest.raises(ConfigError, match=r"public\.k has no key"):
        deliver(spark, captured, "pivot")
    captured.run('UPDATE "T" SET v = 2;\n')
    with pytest.raises(PipelineError) as refused:
        deliver(spark, captured, "pivot", tables=["public.T"])
    assert refused.value.hint.startswith('ALTER TABLE public."T" REPLICA IDENTITY FULL')
