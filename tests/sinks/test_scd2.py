"""``scd2`` has every version of every row, and says from when to when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import Unrepresentable
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, table


def versions(
    spark: SparkSession, captured: Captured, *columns: str, name: str = "t"
) -> list[tuple[Any, ...]]:
    """Some columns of every version, by key and start, and how many events it lasted."""
    frame = table(spark, captured, "scd2", name)
    found = frame.orderBy("id", "_pgtide_lsn", "_pgtide_seq").collect()
    for row in found:
        ends = (row["valid_to"], row["_pgtide_end_lsn"], row["_pgtide_end_seq"])
        assert row["is_current"] == all(end is None for end in ends)
        assert row["is_current"] or None not in ends
    return [(*(row[column] for column in columns), row["is_current"]) for row in found]


def test_versions(spark: SparkSession, captured: Captured) -> None:
    """Several of a row in one batch, key changes, deletes, inserts again, unsent values."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 'a', repeat('x', 9000)), (2, 'b', 's'), (3, 'c', repeat('z', 9000));
UPDATE t SET name = 'A' WHERE id = 1;
UPDATE t SET name = name WHERE id = 2;
"""
    )
    deliver(spark, captured, "scd2")
    x, z = "x" * 9000, "z" * 9000
    assert versions(spark, captured, "id", "name", "long") == [
        (1, "a", x, False),
        (1, "A", x, True),
        (2, "b", "s", False),
        (2, "b", "s", True),
        (3, "c", z, True),
    ]
    captured.run(
        """UPDATE t SET name = 'AA' WHERE id = 1;
UPDATE t SET name = 'AAA' WHERE id = 1;
UPDATE t SET id = 30 WHERE id = 3;
UPDATE t SET name = 'C' WHERE id = 30;
DELETE FROM t WHERE id = 2;
INSERT INTO t VALUES (2, 'again', 's');
DELETE FROM t WHERE id = 30;
"""
    )
    deliver(spark, captured, "scd2")
    wanted = [
        (1, "a", x, False),
        (1, "A", x, False),
        (1, "AA", x, False),
        (1, "AAA", x, True),
        (2, "b", "s", False),
        (2, "b", "s", False),
        (2, "again", "s", True),
        (3, "c", z, False),
        (30, "c", z, False),
        (30, "C", z, False),
    ]
    assert versions(spark, captured, "id", "name", "long") == wanted
    frame = table(spark, captured, "scd2", "t")
    # What one key's version ends with, the next begins with, or it was deleted.
    gaps = frame.filter("id IN (1, 3)").selectExpr(
        "valid_to - lead(valid_from) OVER (PARTITION BY id ORDER BY valid_from) AS gap"
    )
    assert {row["gap"] for row in gaps.collect()} == {timedelta(0), None}
    lose_checkpoint(captured, "scd2")
    deliver(spark, captured, "scd2")
    assert versions(spark, captured, "id", "name", "long") == wanted


def test_filter(spark: SparkSession, captured: Captured) -> None:
    """A row that stops matching ends; one that begins to match begins."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, kind text);
INSERT INTO t VALUES (1, 'in'), (2, 'out');
"""
    )
    keep = {"column": "kind", "operator": "eq", "value": "in"}
    rules = [{"table": "public.t", "filter": keep}]
    deliver(spark, captured, "scd2", rules=rules)
    captured.run(
        "UPDATE t SET kind = 'out' WHERE id = 1;\nUPDATE t SET kind = 'in' WHERE id = 2;\n"
    )
    deliver(spark, captured, "scd2", rules=rules)
    assert versions(spark, captured, "id", "kind") == [(1, "in", False), (2, "in", True)]


@pytest.mark.slow
def test_a_value_that_nothing_has_is_not_made_up(spark: SparkSession, captured: Captured) -> None:
    """A row left through a filter and comes back, without its large value."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, state text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 'open', repeat('x', 9000));
"""
    )
    rules = [{"table": "t", "filter": {"column": "state", "operator": "eq", "value": "open"}}]
    deliver(spark, captured, "scd2", rules=rules)
    captured.run("UPDATE t SET state = 'closed';\n")
    deliver(spark, captured, "scd2", rules=rules)
    captured.run("UPDATE t SET state = 'open';\n")
    with pytest.raises(Unrepresentable, match="does not carry all of its row") as refused:
        deliver(spark, captured, "scd2", rules=rules)
    assert "pgtide refresh public.t" in refused.value.hint
    deliver(spark, captured, "scd2", rules=rules, on_unrepresentable="null")
    assert versions(spark, captured, "id", "long") == [(1, "x" * 9000, False), (1, None, True)]
