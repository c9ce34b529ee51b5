"""Rows in flight on the way into a Postgres target."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pgtide.errors import TargetUnavailable, Yielded
from pgtide.position import Lsn, Position
from pgtide.postgres.visibility import Visibility
from pgtide.sinks.postgres.bookkeeping import prepare, write_progress
from pgtide.spark.sql_text import quoted
from pgtide.verify import moment
from pgtide.verify.postgres_side import KeyColumn, Side
from pgtide.verify.ranges import KeyRanges
from pgtide.verify.relations import Relation
from pgtide.verify.replica_side import ReplicaTable
from pgtide.verify.target_moment import TargetMoment
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until
from tests.verify.lake import table_report
from tests.verify.replica import Replica, equal

HANGING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
CHANGES = (
    "UPDATE t SET v = 'new' WHERE id = 7",
    "UPDATE t SET id = 100 WHERE id = 8",
    "DELETE FROM bag WHERE a = 2",
    "UPDATE bag SET a = 4 WHERE a = 3",
)


def test_committed_but_not_visible(
    make_server: MakeServer, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the target already, while a synchronous standby keeps the source from showing it."""
    server = make_server(synchronous_standby_names="nobody", synchronous_commit="local")
    source = Database.create(server)
    replica = Replica(make_captured(source), Database.create(server))
    replica.run(
        """CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE bag (a int, doc text);
ALTER TABLE bag REPLICA IDENTITY FULL;
ALTER TABLE bag ALTER doc SET STORAGE EXTERNAL;
"""
    )
    replica.captured.run(
        """INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n;
INSERT INTO bag VALUES (1, ''), (1, ''), (2, NULL), (3, repeat('x', 3000));
"""
    )
    replica.fill("t", "bag")
    assert equal(replica.verify(), ["bag", "t"])

    def commit() -> None:
        with source.connect(autocommit=False) as connection:
            connection.execute("SET LOCAL synchronous_commit = on")
            for change in CHANGES:
                connection.execute(change.encode())
            connection.commit()

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        wait_until(lambda: source.execute(HANGING), "the commit to wait for the standby")
        replica.plant(*CHANGES)
        replica.fill()
        report = replica.verify()
        assert equal(report, ["bag", "t"])
        found = [(table.in_flight, table.rows, table.target_rows) for table in report.tables]
        assert found == [(3, 2, 2), (3, 48, 48)]
        with monkeypatch.context() as naive:
            naive.setattr(Visibility, "hides", lambda self, xids: np.zeros(len(xids), bool))
            report = replica.verify()
            bag, t = table_report(report, "bag"), table_report(report, "t")
            assert (t.missing, t.extra, t.different) == (1, 1, 1)
            assert (bag.missing, bag.extra) == (2, 1)
    finally:
        source.execute(f"SELECT pg_cancel_backend(pid) FROM ({HANGING}) AS waiting")
        thread.join(30)
    assert equal(replica.verify(), ["bag", "t"])


def test_rows_without_a_key_count_whatever_is_in_flight(database: Database) -> None:
    """NULL is not among the keys in flight, and not outside of them either."""
    database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (NULL), (900)")
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::bigint")
    key = KeyColumn("id", "int", nullable=True)
    side = Side((Relation("public.t", oid, 1, 4),), ("id::int4",), (key,), ("id::int4",))
    with database.connect() as session:
        target = ReplicaTable(side, [session], [("1",)])
        ranges = KeyRanges.over("other", quoted("other"), 1, 5, rows=4)
        sums = target.checksums(ranges)
        assert sum(rows for rows, _ in sums.values()) == 3
        assert target.checksums(ranges, ranges.numbers, outside=True) == sums
        rows = [row.key for row in target.rows(ranges, list(sums))]
        assert sorted(rows, key=str) == [("2",), ("900",), (None,)]


def test_the_moment_of_a_target(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions see one moment with its position, and a TRUNCATE does not wait for long."""
    monkeypatch.setattr(moment, "YIELD_S", 0)
    monkeypatch.setattr(moment, "LOOK_S", 0)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    tables = [("public", "t"), ("public", "not there")]
    with TargetMoment(database.url, "lake", tables, 2) as held:
        assert held.position is None
        assert [shape.table for shape in held.layouts.values()] == ["t"]
    with database.connect() as connection:
        prepare(connection)
        write_progress(connection, "lake", Position(Lsn(77), 3), "log")
    with TargetMoment(database.url, "lake", tables, 2) as held:
        with database.connect(autocommit=False) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            write_progress(connection, "lake", Position(Lsn(78)), "log")
            connection.commit()
        assert held.position == Position(Lsn(77), 3)
        for session in held.sessions:
            assert session.execute("SELECT id FROM public.t").fetchall() == [(1,)]
        held.check()
        thread = threading.Thread(target=database.execute, args=("TRUNCATE t",))
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_until(lambda: database.execute(waiting), "TRUNCATE to wait")
        with pytest.raises(Yielded):
            held.check()
    thread.join(30)


def test_a_target_that_is_not_there(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    sink = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/nothing"}
    with pytest.raises(TargetUnavailable):
        replica.verify(replica.config(sink=sink))
