"""Exactly once: batches that come again, transactions larger than a batch, rows of snapshots."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetUnavailable
from pgtide.sinks.postgres import initial_load
from pgtide.sinks.postgres.copying import _connections, finished
from pgtide.sinks.postgres.loading import Loader
from pgtide.sinks.postgres.target_tables import read_tables
from pgtide.spark.log_slices import Slice
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.sinks.postgres.replicas import PIPELINE, Replica
from tests.snapshot.taking import take


def test_a_large_transaction_is_applied_whole(
    spark: SparkSession, target: Database, make_captured: MakeCaptured
) -> None:
    """It comes in several batches, and nobody sees a part of it."""
    captured = make_captured(log={"buffer": "256kB"})
    replica = Replica(spark, captured, target)
    captured.run("CREATE TABLE t (id int PRIMARY KEY, doc text);\n")
    replica.follow()
    captured.run(
        "INSERT INTO t SELECT n, string_agg(md5((n * 100 + m)::text), '') FROM"
        " generate_series(1, 20000) n, generate_series(1, 30) m GROUP BY n;\n"
        "INSERT INTO t VALUES (0, 'small');\nUPDATE t SET doc = id::text WHERE id % 2 = 0;\n"
    )
    seen: set[int] = set()
    captured.capture()
    state = replica.apply(
        {"batch": "1MB"}, on_batch=lambda *_: seen.add(replica.rows("t", "count(*)")[0][0])
    )
    assert state.batches > 3
    assert seen <= {0, 20000, 20001}
    replica.check_equal("t")


def test_a_lost_checkpoint(replica: Replica) -> None:
    """What the target has is told by the target."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, n int);\n")
    replica.captured.run("CREATE TABLE bag (n int);\nALTER TABLE bag REPLICA IDENTITY FULL;\n")
    replica.captured.run("INSERT INTO t VALUES (1, 1);\nINSERT INTO bag VALUES (1), (1);\n")
    replica.follow()
    shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)
    replica.captured.run("UPDATE t SET n = n + 1;\nINSERT INTO bag VALUES (1);\n")
    replica.follow()
    replica.check_equal("t", "bag")


def test_a_target_that_has_gone_back(replica: Replica) -> None:
    """As one that was restored, or failed over: what it lost is brought again."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, n int);\n")
    replica.captured.run("INSERT INTO t VALUES (1, 1);\n")
    replica.follow()
    ((lsn, seq),) = replica.target.execute("SELECT lsn::text, seq FROM pgtide.progress")
    replica.captured.run("INSERT INTO t VALUES (2, 2);\n")
    replica.follow()
    replica.target.execute(
        f"UPDATE pgtide.progress SET lsn = '{lsn}', seq = {seq}; DELETE FROM t WHERE id = 2"
    )
    replica.captured.run("INSERT INTO t VALUES (3, 3);\n")
    replica.follow()
    replica.check_equal("t")


@pytest.mark.parametrize(
    "consistency", ["transaction", pytest.param("table", marks=pytest.mark.slow)]
)
def test_rows_of_a_snapshot(
    spark: SparkSession,
    database: Database,
    target: Database,
    make_captured: MakeCaptured,
    consistency: str,
) -> None:
    script = """CREATE TABLE t (id int PRIMARY KEY, doc text);
        CREATE TABLE bag (n int, s text);
        CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"""
    for each in (database, target):
        each.execute(script)
    database.execute(
        "INSERT INTO t SELECT n, repeat(md5(n::text), 9) FROM generate_series(1, 9000) n"
    )
    database.execute("INSERT INTO bag SELECT n % 7, E'\\\\ \\t' FROM generate_series(1, 500) n")
    database.execute("INSERT INTO g SELECT n FROM generate_series(1, 50) n")
    target.execute("INSERT INTO g VALUES (3)")  # not empty: merged, not loaded
    captured = make_captured(snapshot="initial", keyless="full")
    take(captured, spark, chunk_bytes="64kB")
    replica = Replica(spark, captured, target)
    database.execute("UPDATE t SET doc = 'changed' WHERE id < 10; DELETE FROM bag WHERE n = 3")
    replica.follow({"batch": "1MB"}, consistency=consistency)
    replica.check_equal("t", "bag", "g")
    assert target.execute("SELECT count(*) FROM pgtide.loaded") == [(0,)]
    database.execute("UPDATE t SET id = -id WHERE id < 20; INSERT INTO bag VALUES (1, '')")
    replica.follow(consistency=consistency)
    replica.check_equal("t", "bag", "g")


def test_a_task_of_a_load_that_runs_twice(
    spark: SparkSession,
    database: Database,
    target: Database,
    make_captured: MakeCaptured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark runs one again that it has lost sight of, or that takes long, beside the first."""
    for each in (database, target):
        each.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE bag (n int)")
    database.execute("INSERT INTO t VALUES (1), (2); INSERT INTO bag VALUES (1), (1)")
    captured = make_captured(snapshot="initial", keyless="full")
    take(captured, spark)
    told: list[int] = []

    def waiting() -> bool:
        database = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        query = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND database = {database}"
        return target.execute(query) == [(2,)]

    def twice(_: SparkSession, slices: Sequence[Slice], loader: Loader) -> int:
        workers = [replace(loader, url=f"{loader.url}&application_name=try{n}") for n in (1, 2)]
        with ThreadPoolExecutor(2) as pool:
            with target.connect(autocommit=False) as connection:
                connection.execute("LOCK TABLE t, bag IN SHARE MODE")
                tries = [pool.submit(lambda w: list(w(slices)), worker) for worker in workers]
                wait_until(waiting, "both to wait")
            told.extend(finished(one.result())[1] for one in tries)
        for worker in workers:
            _connections.pop(worker.url).close()
        gc.unfreeze()  # a worker has its objects set aside
        return sum(told)

    monkeypatch.setattr(initial_load, "load_rows", twice)
    replica = Replica(spark, captured, target)
    replica.follow()
    assert sorted(told) == [0, 4]
    replica.check_equal("t", "bag")


def test_a_load_behind_another_run(
    spark: SparkSession,
    database: Database,
    target: Database,
    make_captured: MakeCaptured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has brought the snapshot, and that its rows were deleted: they do not come again."""
    for each in (database, target):
        each.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    log = "/".join(captured.log.source.identity.values())

    def outrun(*given: Any) -> Any:
        target.execute("INSERT INTO pgtide.progress VALUES ('replica', 'F/0', 0, now(), %s)", [log])
        return read_tables(*given)

    monkeypatch.setattr(initial_load, "read_tables", outrun)
    with pytest.raises(TargetUnavailable, match="somebody else writes to the target"):
        Replica(spark, captured, target).follow()
    assert target.execute("SELECT * FROM t") == []


@pytest.mark.slow
def test_foreign_keys_are_there_before_a_snapshot_of_several_batches(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """Rows that others refer to come first, whatever the tables were made or named like."""
    script = """CREATE TABLE a_line (id int PRIMARY KEY, ordered int, doc text);
        CREATE TABLE b_order (id int, at int, doc text, PRIMARY KEY (id, at))
            PARTITION BY LIST (at);
        CREATE TABLE b_order_1 PARTITION OF b_order FOR VALUES IN (1);
        CREATE TABLE c_customer (id int PRIMARY KEY, doc text);
        ALTER TABLE a_line ADD at int DEFAULT 1,
            ADD FOREIGN KEY (ordered, at) REFERENCES b_order;
        ALTER TABLE b_order ADD FOREIGN KEY (id) REFERENCES c_customer;"""
    for each in (database, target):
        each.execute(script)
    doc = "(SELECT string_agg(md5((n * 20 + m)::text), '') FROM generate_series(1, 20) m)"
    doc += " FROM generate_series(1, 3000) n"
    database.execute(f"INSERT INTO c_customer SELECT n, {doc}")
    database.execute(f"INSERT INTO b_order SELECT n, 1, {doc}")
    database.execute(f"INSERT INTO a_line SELECT n, n, {doc}")
    captured = make_captured(snapshot="initial")
    take(captured, spark, chunk_bytes="64kB")
    replica = Replica(spark, captured, target)
    state = replica.follow({"batch": "1MB"})
    assert state.batches > 3
    replica.check_equal("a_line", "b_order", "c_customer")
