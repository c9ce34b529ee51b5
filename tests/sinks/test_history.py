"""``history`` has every change once, whatever happened on the way."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, lose_checkpoint, rows, table

OP = ("_pgtide_op", "_pgtide_unchanged", "_pgtide_before")


def test_every_change(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
CREATE TABLE keyless (v int);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'one', repeat('x', 9000)), (2, NULL, 's');
UPDATE t SET name = 'ONE' WHERE id = 1;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 20;
TRUNCATE t;
INSERT INTO keyless VALUES (1), (1);
UPDATE keyless SET v = 2;
"""
    )
    deliver(spark, captured, "history")
    frame = table(spark, captured, "history", "t")
    assert rows(frame, *OP, "id", "name") == [
        ("insert", None, None, 1, "one"),
        ("insert", None, None, 2, None),
        ("update", ["long"], None, 1, "ONE"),
        ("update", None, {"id": "2"}, 20, None),
        ("delete", ["name", "long"], {"id": "20"}, 20, None),
        ("truncate", None, None, None, None),
    ]
    assert [row[0] for row in rows(frame, "long")] == ["x" * 9000, "s", None, "s", None, None]
    keyless = table(spark, captured, "history", "keyless")
    assert rows(keyless, *OP, "v") == [
        ("insert", None, None, 1),
        ("insert", None, None, 1),
        ("update", None, {"v": "1"}, 2),
        ("update", None, {"v": "1"}, 2),
    ]
    logged = {(e.position.lsn, e.position.seq): e for e in captured.events()}
    frame = frame.selectExpr("*", "unix_micros(_pgtide_committed_at) AS at")
    for lsn, seq, xid, at in rows(frame, "_pgtide_lsn", "_pgtide_seq", "_pgtide_xid", "at"):
        event = logged.pop((lsn, seq))
        assert event.committed_at is not None
        assert (event.xid, round(event.committed_at.timestamp() * 1e6)) == (xid, at)


def test_once_and_through_schema_changes(spark: SparkSession, captured: Captured) -> None:
    """DDL and TRUNCATE amid transactions; then the checkpoint is lost, twice."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, gone int);
INSERT INTO t VALUES (1, 'a', 7);
"""
    )
    deliver(spark, captured, "history")
    captured.execute(
        """INSERT INTO t VALUES (2, 'b', 8);
        TRUNCATE t;
        INSERT INTO t VALUES (3, 'c', 9);
        ALTER TABLE t RENAME name TO title;
        ALTER TABLE t DROP gone;
        ALTER TABLE t ADD note text DEFAULT 'n';
        INSERT INTO t VALUES (4, 'd', 'm');
        UPDATE t SET title = 'C' WHERE id = 3;"""
    )
    deliver(spark, captured, "history")
    wanted = [
        ("insert", 1, "a", 7, None),
        ("insert", 2, "b", 8, None),
        ("truncate", None, None, None, None),
        ("insert", 3, "c", 9, None),
        ("insert", 4, "d", None, "m"),
        ("update", 3, "C", None, "n"),
    ]
    columns = ("_pgtide_op", "id", "title", "gone", "note")
    assert rows(table(spark, captured, "history", "t"), *columns) == wanted
    lose_checkpoint(captured, "history")
    deliver(spark, captured, "history")
    assert rows(table(spark, captured, "history", "t"), *columns) == wanted
    captured.execute("DELETE FROM t WHERE id = 4")
    lose_checkpoint(captured, "history")
    deliver(spark, captured, "history")
    wanted.append(("delete", 4, None, None, None))
    assert rows(table(spark, captured, "history", "t"), *columns) == wanted


@pytest.mark.slow
def test_a_new_table_of_the_name_leaves_the_old_history(
    spark: SparkSession, captured: Captured
) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
DROP TABLE t;
CREATE TABLE t (other text PRIMARY KEY);
INSERT INTO t VALUES ('x');
"""
    )
    for _ in range(2):
        deliver(spark, captured, "history")
        assert rows(table(spark, captured, "history", "t"), "other") == [("x",)]
        (old,) = (captured.directory / "history" / "public").glob("t__*")
        assert rows(table(spark, captured, "history", old.name), "id") == [(1,)]
        lose_checkpoint(captured, "history")


def test_rules(spark: SparkSession, captured: Captured) -> None:
    """What a rule hides does not come back through the old row."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, secret text, kind text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'hush', 'a'), (2, 'hush', 'b');
UPDATE t SET secret = 'quiet';
"""
    )
    rules = [
        {"table": "public.t", "transform": {"column": "secret", "mask": {}}},
        {"table": "public.t", "filter": {"column": "kind", "operator": "eq", "value": "a"}},
    ]
    deliver(spark, captured, "history", rules=rules)
    assert rows(table(spark, captured, "history", "t"), *OP, "id", "secret") == [
        ("insert", None, None, 1, "h**h"),
        ("update", None, {"id": "1", "secret": "h**h", "kind": "a"}, 1, "q***t"),
    ]
