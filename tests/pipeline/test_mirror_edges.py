"""Mirrors where names, rules or equal rows could be taken for something else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pgtide
from pgtide.errors import Unrepresentable
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until
from tests.pipeline.test_mirror import check_equal, mirror, run_pipeline
from tests.sinks.lakes import deliver, table

ODD = "a.b`c"


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.slow
def test_columns_named_like_pgtides_own(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        f"""CREATE TABLE moved (id int PRIMARY KEY, origin text, doc text);
ALTER TABLE moved ALTER doc SET STORAGE EXTERNAL;
INSERT INTO moved SELECT n, 'o' || n, repeat('x', 3000) || n FROM generate_series(1, 3) n;
CREATE TABLE bag ("there" int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (2, 'b');
CREATE TABLE odd (field int, "{ODD}" int, v text, PRIMARY KEY (field, "{ODD}"));
ALTER TABLE odd REPLICA IDENTITY FULL;
INSERT INTO odd VALUES (1, 2, 'x');
"""
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "moved", "bag")
    captured.run(
        """UPDATE moved SET id = 10, origin = NULL WHERE id = 1;
UPDATE moved SET origin = 'new' WHERE id = 2;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
UPDATE odd SET v = 'y';
"""
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "moved", "bag")
    odd = table(spark, captured, "lake", "odd").drop("_pgtide_lsn", "_pgtide_seq")
    assert values(odd) == [(1, 2, "y")]
    deliver(spark, captured, "pivot", tables=["public.odd"])
    pivot = table(spark, captured, "pivot", "odd")
    assert pivot.columns[:2] == ["field", ODD]
    assert values(pivot.drop(*[name for name in pivot.columns if name.startswith("datetime")])) == [
        (1, 2, "v", "x", "y", "u"),
        (1, 2, "v", None, "x", "c"),
    ]


@pytest.mark.slow
def test_rows_that_leave_by_a_filter_and_rows_made_equal(
    spark: SparkSession, captured: Captured
) -> None:
    """Soft deletes follow the filter; rows that rules make equal are counted together.

    Spark merges ``hinge``, for its capital, and delta-rs ``orders``.
    """
    captured.run(
        """CREATE TABLE orders (id int PRIMARY KEY, status text, doc text);
ALTER TABLE orders ALTER doc SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 'open', repeat('a', 3000) FROM generate_series(1, 3) n;
CREATE TABLE hinge (id int PRIMARY KEY, "N" int, kind text);
ALTER TABLE hinge ALTER kind SET STORAGE EXTERNAL;
INSERT INTO hinge SELECT n, 0, repeat('k', 3000) FROM generate_series(1, 2) n;
CREATE TABLE log (a int, secret text);
ALTER TABLE log REPLICA IDENTITY FULL;
INSERT INTO log VALUES (1, 'x'), (1, 'y'), (2, 'x'), (2, 'y'), (2, 'z'), (3, 'x');
"""
    )
    name = captured.database.name
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "soft_delete": True}
    sink["views"] = name
    kept = {"column": "status", "operator": "eq", "value": "open"}
    hinges = {"column": "kind", "operator": "eq", "value": "k" * 3000}
    rules = [
        {"table": "public.orders", "filter": kept},
        {"table": "public.hinge", "filter": hinges},
        {"table": "public.log", "exclude": ["secret"]},
    ]

    def shown(view: str) -> list[tuple[Any, ...]]:
        return values(spark.table(f"{name}.public_{view}"))

    run_pipeline(spark, captured, sink=sink, rules=rules)
    a, b = "a" * 3000, "b" * 3000
    captured.run(
        """UPDATE orders SET status = 'closed', doc = repeat('b', 3000) WHERE id = 1;
DELETE FROM orders WHERE id = 2;
UPDATE hinge SET kind = repeat('l', 3000) WHERE id = 1;
DELETE FROM log WHERE a = 1;
DELETE FROM log WHERE a = 2 AND secret < 'z';
INSERT INTO log VALUES (2, 'new'), (3, 'new');
UPDATE log SET secret = 'other' WHERE a = 3;
"""
    )
    run_pipeline(spark, captured, sink=sink, rules=rules)
    assert shown("orders") == [(3, "open", a)], "left by the filter"
    assert mirror(spark, captured, "orders") == [
        (1, "closed", b),
        (2, "open", a),
        (3, "open", a),
    ], "only a delete keeps the values of before"
    assert shown("log") == [(2,), (2,), (3,), (3,)]
    captured.run(
        """UPDATE orders SET status = 'open' WHERE id = 1;
UPDATE hinge SET "N" = 1;
"""
    )
    state = run_pipeline(spark, captured, sink=sink, rules=rules)
    assert state.withheld == {"public.orders": 1, "public.hinge": 1}
    assert shown("orders") == [(1, "open", b), (3, "open", a)], "matches again"
    assert shown("hinge") == [(2, 1, "k" * 3000)], "what was not sent does not match either"


@pytest.mark.slow
def test_a_row_comes_back_without_its_large_value(spark: SparkSession, captured: Captured) -> None:
    """Nobody has it but the source: what the error says to do brings it."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, state text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 'closed', repeat('x', 9000)), (2, 'open', 'y');
"""
    )
    rules = [{"table": "t", "filter": {"column": "state", "operator": "eq", "value": "open"}}]
    run_pipeline(spark, captured, rules=rules)
    captured.run("UPDATE t SET state = 'open';\n")
    with pytest.raises(Unrepresentable, match="does not carry all of its row") as refused:
        run_pipeline(spark, captured, rules=rules)
    assert "a filter left it out" in refused.value.detail
    assert "pgtide refresh public.t" in refused.value.hint
    request = Refresh("public.t")
    store = RefreshStore(Storage(captured.config.log.path))
    store.add(request)
    run_pipeline(spark, captured, rules=rules)

    def refreshed() -> bool:
        captured.capture()
        return not store.is_open(request.id)

    wait_until(refreshed, "the refresh")
    run_pipeline(spark, captured, rules=rules)
    assert mirror(spark, captured, "t") == [(1, "open", "x" * 9000), (2, "open", "y")]


@pytest.mark.slow
def test_a_filter_on_what_is_not_sent_follows_a_key(
    spark: SparkSession, captured: Captured
) -> None:
    """The row passed the filter under its old key, by a value that did not change."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, body text);
ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, repeat('x', 9000)), (2, repeat('y', 9000));
"""
    )
    rules = [{"table": "t", "filter": {"column": "body", "operator": "contains", "value": "x"}}]
    run_pipeline(spark, captured, rules=rules)
    captured.run("UPDATE t SET id = id + 10;\n")
    run_pipeline(spark, captured, rules=rules)
    assert mirror(spark, captured, "t") == [(11, "x" * 9000)]
    # Rows have no mark yet that they are there.
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "soft_delete": True}
    captured.run("UPDATE t SET id = id + 10;\n")
    run_pipeline(spark, captured, rules=rules, sink=sink)
    assert mirror(spark, captured, "t", "_pgtide_deleted IS NOT TRUE") == [(21, "x" * 9000)]


@pytest.mark.slow
def test_partitions_have_an_identity_of_their_own(spark: SparkSession, captured: Captured) -> None:
    """What an old row holds is said by the partition: setting it on the root reaches none."""
    captured.run(
        """CREATE TABLE docs (id int, n int, doc text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE docs_low PARTITION OF docs FOR VALUES FROM (0) TO (10);
CREATE TABLE docs_high PARTITION OF docs FOR VALUES FROM (10) TO (20);
ALTER TABLE docs_low ALTER doc SET STORAGE EXTERNAL;
ALTER TABLE docs_high ALTER doc SET STORAGE EXTERNAL;
ALTER TABLE ONLY docs REPLICA IDENTITY FULL;
ALTER TABLE docs_high REPLICA IDENTITY FULL;
INSERT INTO docs SELECT n, 0, repeat('d', 3000) || n FROM generate_series(1, 15) n;
CREATE TABLE bag (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE bag_low PARTITION OF bag FOR VALUES FROM (0) TO (10);
ALTER TABLE bag_low REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, 'y');
"""
    )
    run_pipeline(spark, captured)
    captured.run(
        """UPDATE docs SET n = id;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
UPDATE bag SET b = 'z' WHERE a = 2;
"""
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "docs", "bag")
    docs = pgtide.latest(spark, captured.config.log.path, "public.docs")
    assert docs.filter("doc IS NULL OR n <> id").count() == 0
