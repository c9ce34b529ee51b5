"""``mode: history``: every change of a table as a row of the target, once, whatever happened."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import PipelineError, TargetError, TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.pipeline.replaying import check_replay
from pgtide.pipeline.state_file import StateFile
from pgtide.sinks.postgres import history_transaction
from pgtide.sinks.postgres.history_tables import refuse_histories
from pgtide.verify.planning import refusal
from tests.cli.test_run import START_S, Running
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.sinks.postgres.histories import check_equals_log
from tests.sinks.postgres.replicas import PIPELINE, Replica
from tests.snapshot.taking import take

OP = "_pgtide_op, _pgtide_unchanged, _pgtide_before"


def follow(replica: Replica, pipeline: dict[str, Any] | None = None) -> Any:
    return replica.follow(pipeline, mode="history")


def events(replica: Replica, columns: str, table: str = "t") -> list[tuple[Any, ...]]:
    order = "ORDER BY _pgtide_lsn, _pgtide_seq"
    return replica.target.execute(f"SELECT {columns} FROM {table} {order}")


def columns(replica: Replica, table: str) -> list[tuple[str, str]]:
    """Names and types of the source's columns."""
    return replica.target.execute(
        f"""SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = '{table}'::regclass AND attnum > 0 AND attname !~ '^_pgtide'
        ORDER BY attnum"""
    )


def lose_checkpoint(replica: Replica) -> None:
    shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)


def test_every_change(replica: Replica) -> None:
    """As the log has them, whatever the replica identity; rows of partitions say which."""
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
CREATE TABLE keyless (v int, "odd ""name" text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
INSERT INTO t VALUES (1, E'\\t\\\\ \\n', repeat('x', 9000)), (2, NULL, 's');
UPDATE t SET name = 'ONE' WHERE id = 1;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 20;
TRUNCATE t;
INSERT INTO keyless VALUES (1, '"'), (1, NULL);
UPDATE keyless SET v = 2;
INSERT INTO parted VALUES (1, 'a'), (11, 'b');
UPDATE parted SET id = 12 WHERE id = 1;
TRUNCATE parted_2;
"""
    )
    follow(replica)
    assert events(replica, f"{OP}, id, name") == [
        ("insert", None, None, 1, "\t\\ \n"),
        ("insert", None, None, 2, None),
        ("update", ["long"], None, 1, "ONE"),
        ("update", None, {"id": "2"}, 20, None),
        ("delete", ["name", "long"], {"id": "20"}, 20, None),
        ("truncate", None, None, None, None),
    ]
    assert [row[0] for row in events(replica, "long")] == ["x" * 9000, "s", None, "s", None, None]
    assert events(replica, f"{OP}, v", "keyless") == [
        ("insert", None, None, 1),
        ("insert", None, None, 1),
        ("update", None, {"v": "1", 'odd "name': '"'}, 2),
        ("update", None, {"v": "1", 'odd "name': None}, 2),
    ]
    names = dict(replica.captured.execute("SELECT oid::bigint, relname::text FROM pg_class"))
    found = events(replica, "_pgtide_op, _pgtide_relation, id", "parted")
    assert [(op, names[relation], key) for op, relation, key in found] == [
        ("insert", "parted_1", 1),
        ("insert", "parted_2", 11),
        ("delete", "parted_1", 1),
        ("insert", "parted_2", 12),
        ("truncate", "parted_2", None),
    ]
    logged = {
        (str(event.position.lsn), event.position.seq): (event.op, event.xid, event.committed_at)
        for event in replica.captured.events()
        if event.op in ("insert", "update", "delete", "truncate")
    }
    facts = "_pgtide_lsn::text, _pgtide_seq, _pgtide_op, _pgtide_xid, _pgtide_committed_at"
    stored = [row for table in ("t", "keyless", "parted") for row in events(replica, facts, table)]
    assert {(lsn, seq): tuple(rest) for lsn, seq, *rest in stored} == logged
    assert len(stored) == len(logged)


def test_schema_changes(replica: Replica) -> None:
    """Columns and tables that come, go and change within a batch; every row has its values."""
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, gone int, n int, kind text);
INSERT INTO t VALUES (1, 'a', 7, 1, '5');
"""
    )
    follow(replica)
    replica.captured.run(
        """INSERT INTO t VALUES (2, 'b', 8, 2, '6');
ALTER TABLE t RENAME name TO title;
ALTER TABLE t DROP gone, ADD note text DEFAULT 'n';
INSERT INTO t VALUES (3, 'c', 3, '7', 'm');
ALTER TABLE t ALTER n TYPE bigint, ALTER kind TYPE int USING kind::int, ADD gone text;
INSERT INTO t VALUES (4, 'd', 9876543210, 8, 'o', 'new');
CREATE SCHEMA other;
ALTER TABLE t RENAME TO u;
ALTER TABLE u SET SCHEMA other;
INSERT INTO other.u VALUES (5, 'e', 5, 9, 'p', 'x');
CREATE TABLE t (id text PRIMARY KEY);
INSERT INTO t VALUES ('first');
DROP TABLE t;
CREATE TABLE t (id int PRIMARY KEY, more uuid);
INSERT INTO t VALUES (9);
"""
    )
    follow(replica)
    wanted = [
        (1, "a", 7, None, 1, "5", None, None),
        (2, "b", 8, None, 2, "6", None, None),
        (3, "c", None, None, 3, "7", None, "m"),
        (4, "d", None, "new", 9876543210, None, 8, "o"),
        (5, "e", None, "x", 5, None, 9, "p"),
    ]
    names = "id, title, gone__integer, gone, n, kind__text, kind, note"
    changes = events(replica, names, "other.u WHERE _pgtide_op <> 'read'")
    assert changes == wanted
    # ALTER TYPE wrote the rows anew, so they were read again.
    read = events(replica, "id, kind", "other.u WHERE _pgtide_op = 'read'")
    assert read == [(1, 5), (2, 6), (3, 7), (4, 8), (5, 9)]
    assert events(replica, "id") == [(9,)]
    assert columns(replica, "t") == [("id", "integer"), ("more", "uuid")]
    ((old,),) = replica.target.execute("SELECT relname::text FROM pg_class WHERE relname ~ '^t__'")
    assert events(replica, "id", f'"{old}"') == [("first",)]
    replica.captured.run("INSERT INTO other.u VALUES (6);\nINSERT INTO t VALUES (10);\n")
    lose_checkpoint(replica)
    follow(replica)
    assert events(replica, "id", "other.u")[-2:] == [(5,), (6,)]
    assert events(replica, "id") == [(9,), (10,)]


NAMES = [
    """CREATE TABLE a (id int PRIMARY KEY, x int, y text, "X" text);
CREATE TABLE b (id int PRIMARY KEY, other date);
INSERT INTO a VALUES (1, 1, 'y', 'big');
INSERT INTO b VALUES (1, 'today');
""",
    """BEGIN;
INSERT INTO a VALUES (2, 2, 'y2');
ALTER TABLE a RENAME x TO tmp;
ALTER TABLE a RENAME y TO x;
ALTER TABLE a RENAME tmp TO y;
INSERT INTO a VALUES (3, 3, 'x');
ALTER TABLE a RENAME TO tmp;
ALTER TABLE b RENAME TO a;
ALTER TABLE tmp RENAME TO b;
INSERT INTO a VALUES (2, 'yesterday');
INSERT INTO b VALUES (4, 4, 'x');
COMMIT;
INSERT INTO a VALUES (3);
DELETE FROM b WHERE id = 4;
""",
    """CREATE SCHEMA s;
ALTER TABLE a SET SCHEMA s;
CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE a_1 PARTITION OF a FOR VALUES FROM (0) TO (10);
INSERT INTO a VALUES (5);
ALTER TABLE a DETACH PARTITION a_1;
INSERT INTO a_1 VALUES (6);
DROP TABLE a;
ALTER TABLE b RENAME TO a;
INSERT INTO a VALUES (7);
CREATE TABLE b (id int PRIMARY KEY, long_name int);
INSERT INTO b VALUES (1, 1);
ALTER TABLE b DROP long_name;
ALTER TABLE b ADD long_name text;
INSERT INTO b VALUES (2, 'two');
ALTER TABLE b ALTER id TYPE text;
INSERT INTO b VALUES ('three');
ALTER TABLE b ALTER id TYPE int USING ascii(id);
INSERT INTO b VALUES (4);
ALTER TABLE b RENAME TO c;
DROP TABLE c;
DROP SCHEMA s CASCADE;
CREATE TABLE c (id int PRIMARY KEY);
INSERT INTO c VALUES (1);
""",
]


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_names_that_change_hands(replica: Replica, at_once: bool) -> None:
    """Of columns, tables and schemas; the same whether batches are small or large."""
    for script in NAMES:
        replica.captured.run(script.replace("long_name", "n" * 60))
        if not at_once:
            follow(replica)
            check_equals_log(replica)
    follow(replica)
    check_equals_log(replica)


def test_stopped_before_the_end(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were staged, tables that were made: nothing of it is there, then all of it once."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    follow(replica)
    replica.captured.run(
        """INSERT INTO t VALUES (2), (3);
ALTER TABLE t RENAME id TO number;
CREATE TABLE more (id int PRIMARY KEY);
INSERT INTO more VALUES (4);
"""
    )
    with monkeypatch.context() as patch:
        patch.setattr(history_transaction, "write_progress", _gone)
        with pytest.raises(TargetUnavailable):
            follow(replica)
    assert replica.target.execute("SELECT to_regclass('more')") == [(None,)]
    assert events(replica, "id") == [(1,)]
    lose_checkpoint(replica)
    follow(replica)
    assert events(replica, "number") == [(1,), (2,), (3,)]
    assert events(replica, "id", "more") == [(4,)]


def _gone(*_: object) -> None:
    raise TargetUnavailable("gone")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9_between_stage_and_commit(captured: Captured, target: Database) -> None:
    """It waits for its progress, which somebody has locked: now it dies."""
    past = {"sink": {"type": "postgres", "url": target.url, "mode": "history"}}
    running = Running(captured, past=past)
    captured.run("CREATE TABLE t (id int PRIMARY KEY, v int);\nINSERT INTO t VALUES (0, 0);\n")
    assert running.finish("run", "--until-current", "--pipeline", "past") == 0, running.said()
    captured.run(
        "INSERT INTO t SELECT n, n FROM generate_series(1, 5000) n;\nUPDATE t SET v = 1;\n"
    )
    captured.capture()
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'transactionid'"
    with target.connect(autocommit=False) as locking:
        locking.execute("SELECT FROM pgtide.progress FOR UPDATE")
        process = running.start("run", "--pipeline", "past")
        try:
            wait_until(lambda: bool(target.execute(waiting)), "rows that are staged", START_S)
        finally:
            process.kill()
            process.wait()
    assert target.execute("SELECT count(*) FROM t") == [(1,)]
    shutil.rmtree(captured.directory / "log" / "pipelines" / "past")
    assert running.finish("run", "--until-current", "--pipeline", "past") == 0, running.said()
    query = "SELECT _pgtide_op, count(*), sum(id), sum(v) FROM t GROUP BY 1 ORDER BY 1"
    assert target.execute(query) == [
        ("insert", 5001, 12502500, 12502500),
        ("update", 5001, 12502500, 5001),
    ]
    for question in ("check", "status"):
        assert running.finish(question) == 0, running.said()


@pytest.mark.slow
def test_a_snapshot_and_a_large_transaction(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """Both come in several batches; of a transaction nobody sees a part."""
    doc = "(SELECT string_agg(md5((n * 100 + m)::text), '') FROM generate_series(1, 30) m)"
    database.execute("CREATE TABLE t (id int PRIMARY KEY, doc text)")
    database.execute(f"INSERT INTO t SELECT n, {doc} FROM generate_series(1, 9000) n")
    captured = make_captured(snapshot="initial", log={"buffer": "256kB"})
    take(captured, spark, chunk_bytes="64kB")
    replica = Replica(spark, captured, target)
    captured.run(
        f"INSERT INTO t SELECT n, {doc} FROM generate_series(9001, 29000) n;\n"
        "INSERT INTO t VALUES (0, 'small');\nUPDATE t SET doc = id::text WHERE id % 2 = 0;\n"
    )
    seen: set[int] = set()
    captured.capture()
    count = "SELECT count(*) FROM t WHERE _pgtide_op <> 'read'"
    state = replica.apply(
        {"batch": "1MB"}, on_batch=lambda *_: seen.add(target.execute(count)[0][0]), mode="history"
    )
    assert state.batches > 5
    assert seen <= {0, 20000, 20001, 34502}
    check_equals_log(replica)


@pytest.mark.slow
def test_tables_that_come_and_go(replica: Replica) -> None:
    """One is selected later, one leaves and comes again, one is parked while it is renamed."""
    replica.captured.run(
        """CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY);
CREATE TABLE c (id int PRIMARY KEY);
INSERT INTO a VALUES (1);
INSERT INTO b VALUES (1);
INSERT INTO c VALUES (1);
"""
    )
    replica.target.execute("CREATE TABLE a (id int)")
    parking = {"on_error": "park"}
    state = follow(replica, {"tables": ["public.a", "public.b"], **parking})
    assert list(state.parked) == ["public.a"]
    replica.captured.run(
        """ALTER TABLE a RENAME id TO number;
ALTER TABLE b ADD v int;
INSERT INTO a VALUES (2);
INSERT INTO b VALUES (2, 2);
INSERT INTO c VALUES (2);
ALTER TABLE a RENAME TO d;
CREATE TABLE a (id int PRIMARY KEY);
INSERT INTO a VALUES (3);
"""
    )
    follow(replica, {"tables": ["public.[acd]"], **parking})
    replica.target.execute("DROP TABLE a")
    replica.captured.run("INSERT INTO b VALUES (3, 3);\nINSERT INTO d VALUES (3);\n")
    replica.resume()
    state = follow(replica, parking)
    assert (state.parked, state.left) == ({}, {})
    check_equals_log(replica)


@pytest.mark.slow
def test_renames_that_nobody_tells(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """Without DDL in the log tables and columns are followed when their next row comes."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, x int)")
    database.execute("CREATE TABLE b (id int PRIMARY KEY, y int)")
    captured = make_captured(ddl=False)
    replica = Replica(spark, captured, target)
    captured.run("INSERT INTO a VALUES (1, 1);\nINSERT INTO b VALUES (1, 1);\n")
    follow(replica)
    captured.run(
        """ALTER TABLE a RENAME TO tmp;
ALTER TABLE b RENAME TO a;
ALTER TABLE tmp RENAME TO b;
ALTER TABLE a RENAME y TO z;
INSERT INTO a VALUES (2, 2);
INSERT INTO b VALUES (2, 2);
"""
    )
    follow(replica)
    assert events(replica, "id, x", "b") == [(1, 1), (2, 2)]
    assert events(replica, "id", "a") == [(1,), (2,)]


def test_rules_and_rows_that_were_there(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """What a rule hides does not come back through the old row, a stage or a snapshot."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret varchar(9), n int, kind text, _pgtide_op int)"
    )
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t VALUES (1, 'hush', 15, 'a', 7), (2, 'hush', 25, 'b', 7)")
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    captured.run("UPDATE t SET secret = 'quiet', n = 38;\nTRUNCATE t;\n")
    rules = [
        {"table": "public.t", "transform": {"column": "secret", "mask": {}}},
        {"table": "public.t", "transform": {"column": "n", "sql": "CAST(n % 10 AS bigint)"}},
        {"table": "public.t", "filter": {"column": "kind", "operator": "eq", "value": "a"}},
        {"table": "public.t", "exclude": ["id"]},
    ]
    routes = [{"table": "public.t", "to": "audit.changes", "rename": {"kind": "text"}}]
    follow(replica, {"rules": rules, "routes": routes})
    names = f'{OP}, secret, n, "text", _pgtide_op__2'
    old = {"secret": "h**h", "n": "5", "text": "a", "_pgtide_op__2": "7"}
    assert events(replica, names, "audit.changes") == [
        ("read", None, None, "h**h", 5, "a", 7),
        ("update", None, old, "q***t", 8, "a", 7),
        ("truncate", None, None, None, None, None, None),
    ]
    assert columns(replica, "audit.changes") == [
        ("secret", "text"),
        ("n", "bigint"),
        ("text", "text"),
    ]
    staged = "SELECT relname::text FROM pg_class WHERE relname ~ '^stage_' AND relkind = 'r'"
    ((stage,),) = target.execute(staged)
    assert "hush" not in str(target.execute(f'SELECT s::text FROM pgtide."{stage}" s'))


def test_types_that_the_target_does_not_have(replica: Replica) -> None:
    """Those are texts; a domain is the type below it, which has no constraints."""
    replica.target.execute("CREATE TYPE mood AS ENUM ('good')")
    replica.captured.run(
        """CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN email AS varchar(20) NOT NULL CHECK (VALUE LIKE '%@%');
CREATE TABLE rowtype (id int PRIMARY KEY);
CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[], p pair, e email, r regclass, b bit(3),
    n numeric(9,2), at timestamptz(3), j jsonb, whole rowtype[]);
INSERT INTO t VALUES (1, 'good', '{good}', '(1,x)', 'a@b', 't', '101', 1.5, 'epoch', '{}',
    ARRAY[ROW(1)::rowtype]);
DELETE FROM t;
"""
    )
    follow(replica)
    assert columns(replica, "t") == [
        ("id", "integer"),
        ("m", "mood"),
        ("ms", "mood[]"),
        ("p", "text"),
        ("e", "character varying(20)"),
        ("r", "text"),
        ("b", "bit(3)"),
        ("n", "numeric(9,2)"),
        ("at", "timestamp(3) with time zone"),
        ("j", "jsonb"),
        ("whole", "text"),
    ]
    assert events(replica, "m::text, ms::text, p, e, b::text")[0] == (
        "good", "{good}", "(1,x)", "a@b", "101",
    )  # fmt: skip
    replica.captured.run("INSERT INTO t VALUES (2, 'bad', NULL, NULL, 'a@b');\n")
    with pytest.raises(TargetError, match="refuses a row") as refused:
        follow(replica)
    assert '"2"' in refused.value.detail
    file = StateFile(Storage(replica.captured.config.log.path), PIPELINE)
    earlier = file.load()
    assert earlier is not None
    for _ in range(2):
        state = follow(replica, {"on_error": "park"})
        assert list(state.parked) == ["public.t"]
        file.save(earlier)  # as after a crash: only the target knows what it has passed over
    replica.target.execute("ALTER TYPE mood ADD VALUE 'bad'")
    replica.captured.run(
        "CREATE TYPE pair2 AS (a int);\nINSERT INTO t (id, m, e) VALUES (3, 'bad', '@');\n"
    )
    replica.resume()
    follow(replica)
    assert events(replica, "id, m::text")[-2:] == [(2, "bad"), (3, "bad")]
    assert len(events(replica, "id")) == 4


def test_refusals(replica: Replica) -> None:
    replica.captured.run(
        "CREATE TABLE t (id int PRIMARY KEY);\nCREATE TABLE u (id int PRIMARY KEY);\n"
    )
    replica.target.execute("CREATE TABLE t (id int)")
    replica.captured.run("INSERT INTO t VALUES (1);\nINSERT INTO u VALUES (1);\n")
    with pytest.raises(TargetError, match=r"public\.t that is not this pipeline's history"):
        follow(replica)
    together = [{"table": "public.*", "to": "s.both"}]
    with pytest.raises(TargetError, match="would be one table of the target"):
        follow(replica, {"routes": together})
    replica.target.execute("DROP TABLE t")
    follow(replica)
    assert events(replica, "id") == [(1,)]
    replica.captured.run("INSERT INTO u VALUES (2);\n")
    taken = {"table": "public.u", "to": "public.t"}
    with pytest.raises(TargetError, match="would be one table of the target"):
        follow(replica, {"routes": [taken]})
    replica.captured.run("INSERT INTO t VALUES (2);\n")
    with pytest.raises(TargetError, match="has written a history"):
        replica.follow()
    with replica.target.connect() as connection:  # where the source has histories of its own
        refuse_histories(connection, PIPELINE, "of/another/log")
    config = replica.config(mode="history")
    assert "mode history" in refusal(config.pipelines[PIPELINE])
    with pytest.raises(PipelineError, match="appended once"):
        check_replay(config, PIPELINE, None)
    check_replay(config, PIPELINE, replica.captured.events()[-1].position)
