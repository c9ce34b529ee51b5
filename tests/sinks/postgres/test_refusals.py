"""Rows that a target refuses, wherever they are on their way: key, reason, parked, nothing lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.pipeline.state_file import StateFile
from pgtide.sinks.postgres.after_rows import store_after_rows
from pgtide.sinks.postgres.bookkeeping import prepare
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.target_schemas import TargetSchemas
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import PIPELINE, Replica
from tests.snapshot.taking import take

PARK = {"on_error": "park", "batch": "1MB"}


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["transaction", "table"])
def test_rows_of_a_snapshot(
    spark: SparkSession,
    database: Database,
    target: Database,
    make_captured: MakeCaptured,
    consistency: str,
) -> None:
    """Rows that are loaded straight into tables, some of which have no key: none comes twice."""
    for each in (database, target):
        each.execute(
            "CREATE TABLE t (id int, part text, v int, doc text, PRIMARY KEY (part, id));"
            "CREATE TABLE bag (n int, doc text); CREATE TABLE u (id int PRIMARY KEY, doc text)"
        )
    words = "SELECT string_agg(md5((n * 99 + m)::text), '') FROM generate_series(1, 30) m"
    doc = f"({words}) FROM generate_series(1, 3000) n"
    database.execute(f"INSERT INTO t SELECT n, E'a\\tb', n, {doc}")
    database.execute(f"INSERT INTO bag SELECT n, {doc}; INSERT INTO u SELECT n, {doc}")
    database.execute("UPDATE t SET v = 987654 WHERE id = 2000")
    target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (v < 5000)")
    target.execute("ALTER TABLE bag ADD CONSTRAINT many CHECK (n < 2500)")
    captured = make_captured(snapshot="initial", keyless="full")
    take(captured, spark, chunk_bytes="64kB")
    replica = Replica(spark, captured, target)
    captured.capture()
    with pytest.raises(TargetError, match="the target refuses a row by constraint") as refused:
        replica.apply({"batch": "1MB"}, consistency=consistency)
    assert "SQLSTATE 23514" in refused.value.detail
    state = replica.apply(PARK, consistency=consistency)
    assert sorted(state.parked) == ["public.bag", "public.t"]
    small = state.parked["public.t"]
    assert small.message == "the target refuses a row by constraint small"
    assert 'In public.t, key {"id": "2000", "part": "a\\tb"}, at ' in small.detail
    assert "987654" not in small.detail
    assert "In public.bag, at " in state.parked["public.bag"].detail
    replica.check_equal("u")
    database.execute("UPDATE t SET v = 0 WHERE id = 7; INSERT INTO u VALUES (0, 'new')")
    database.execute("DELETE FROM bag WHERE n < 10; INSERT INTO bag VALUES (1, 'new')")
    replica.follow(PARK, consistency=consistency)
    replica.check_equal("u")
    assert target.execute("SELECT count(*) > 0 FROM pgtide.loads") == [(True,)]
    target.execute("ALTER TABLE t DROP CONSTRAINT small; ALTER TABLE bag DROP CONSTRAINT many")
    replica.resume()
    state = replica.follow(PARK, consistency=consistency)
    assert not state.parked
    replica.check_equal("t", "bag", "u")
    database.execute("UPDATE u SET doc = '' WHERE id = 0")
    replica.follow(PARK, consistency=consistency)
    replica.check_equal("t", "bag", "u")
    assert target.execute(
        "SELECT (SELECT count(*) FROM pgtide.loads), count(*) FROM pgtide.loaded"
    ) == [(0, 0)]


def test_a_load_that_a_target_does_not_let_begin(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """A unit that is attempted again, in the source's own order, has its rows to load again."""
    for each in (database, target):
        each.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    target.execute(
        """CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE TRIGGER touch BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION touched();
        CREATE FUNCTION keep() RETURNS event_trigger LANGUAGE plpgsql
            AS 'BEGIN RAISE EXCEPTION ''tables stay as they are''; END';
        CREATE EVENT TRIGGER kept ON ddl_command_start WHEN TAG IN ('ALTER TABLE')
            EXECUTE FUNCTION keep();"""
    )
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    with pytest.raises(TargetError, match="the target refuses"):
        replica.follow()
    target.execute("DROP EVENT TRIGGER kept")
    replica.follow()
    replica.check_equal("t")


@pytest.mark.slow
@pytest.mark.parametrize("begin", [Replica.follow, Replica.begin_stream], ids=["spark", "files"])
def test_rows_that_cannot_be_staged(
    spark: SparkSession, captured: Captured, begin: Callable[[Replica], object]
) -> None:
    """A target with another encoding has no place for a character: not even in a stage."""
    target = Database.create(captured.database.server, encoding="LATIN1")
    try:
        replica = Replica(spark, captured, target)
        captured.run("CREATE TABLE t (id int PRIMARY KEY, v text);\n")
        captured.run("CREATE TABLE u (id int PRIMARY KEY, v text);\n")
        begin(replica)
        captured.run("INSERT INTO t SELECT n, 'ü' FROM generate_series(1, 50) n;\n")
        captured.run("UPDATE t SET v = 'secret €' WHERE id = 33;\nINSERT INTO u VALUES (1, 'ä');\n")
        with pytest.raises(TargetError, match="the target refuses a row") as refused:
            replica.follow()
        assert 'In public.t, key {"id": "33"}, at ' in refused.value.detail
        assert "SQLSTATE 22P05" in refused.value.detail
        assert "secret" not in refused.value.detail
        state = replica.follow({"on_error": "park"})
        assert list(state.parked) == ["public.t"]
        assert target.execute("SELECT v FROM u") == [("ä",)]
        captured.run("UPDATE t SET v = 'euro' WHERE id = 33;\nDELETE FROM t WHERE id = 1;\n")
        replica.follow({"on_error": "park"})
        replica.resume()  # up to here, so the row is as it was corrected
        assert not replica.follow({"on_error": "park"}).parked
        replica.check_equal("t", "u")
    finally:
        target.drop()


def test_values_that_a_column_does_not_hold(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9));\n")
    replica.follow()
    replica.target.execute("ALTER TABLE t ALTER v TYPE varchar(3)")
    replica.captured.run("INSERT INTO t VALUES (1, 'a'), (2, 'abcdef');\n")
    state = replica.follow({"on_error": "park"})
    assert 'key {"id": "2"}' in state.parked["public.t"].detail
    assert "SQLSTATE 22001" in state.parked["public.t"].detail
    replica.target.execute("ALTER TABLE t ALTER v TYPE varchar(9)")
    replica.resume()
    assert not replica.follow({"on_error": "park"}).parked
    replica.check_equal("t")


@pytest.mark.parametrize("state", ["older", pytest.param("lost", marks=pytest.mark.slow)])
def test_a_state_that_does_not_know_of_a_parked_table(replica: Replica, state: str) -> None:
    """As after a crash between the two: the target has passed over rows, and says so."""
    file = StateFile(Storage(replica.captured.config.log.path), PIPELINE)
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v int);\n")
    replica.captured.run("CREATE TABLE u (id int PRIMARY KEY, v int);\n")
    replica.follow()
    earlier = file.load()
    assert earlier is not None
    replica.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (v < 5)")
    replica.captured.run("INSERT INTO t VALUES (1, 1), (2, 9);\nINSERT INTO u VALUES (1, 9);\n")
    known = replica.follow({"on_error": "park"}).parked["public.t"]
    replica.captured.run("INSERT INTO t VALUES (3, 3);\n")
    if state == "older":
        file.save(earlier)
        parked = replica.follow({"on_error": "park"}).parked["public.t"]
        assert (parked.position, parked.detail) == (known.position, known.detail)
        replica.target.execute("ALTER TABLE t DROP CONSTRAINT small")
        replica.resume()
    else:
        shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)
        replica.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    assert not replica.follow({"on_error": "park"}).parked
    replica.check_equal("t", "u")
    assert replica.target.execute("SELECT count(*) FROM pgtide.parked") == [(0,)]
    left = "SELECT pipeline FROM pgtide.progress"
    assert replica.target.execute(left) == [(PIPELINE,)], "nothing is left of the resumption"


@pytest.mark.slow
@pytest.mark.parametrize("table", ["t", "pgtide.progress"])
def test_a_target_that_fails_in_the_middle(replica: Replica, table: str) -> None:
    """Its disk is full, its connections end: nothing is parked for that, and nothing is lost."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE);\n")
    replica.captured.run("INSERT INTO t VALUES (1, 'a'), (2, 'b');\n")
    replica.follow()
    replica.captured.run(
        """UPDATE t SET v = NULL WHERE id = 1;
UPDATE t SET v = 'a' WHERE id = 2;
UPDATE t SET v = 'b' WHERE id = 1;
INSERT INTO t VALUES (3, 'c');
"""
    )
    before = replica.rows("t")
    for failing in (
        "RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'no space left'",
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60)",
    ):
        replica.target.execute(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN {failing}; RETURN NULL; END$$; DROP TRIGGER IF EXISTS fails ON {table};"
            f" CREATE TRIGGER fails AFTER INSERT OR UPDATE ON {table} EXECUTE FUNCTION fail();"
            f" ALTER TABLE {table} ENABLE ALWAYS TRIGGER fails"
        )
        with pytest.raises(TargetUnavailable):
            replica.follow({"on_error": "park"})
        assert replica.rows("t") == before
    replica.target.execute(f"DROP TRIGGER fails ON {table}")
    assert not replica.follow({"on_error": "park"}).parked
    replica.check_equal("t")


@pytest.mark.slow
def test_a_target_that_is_read_only_for_a_while(replica: Replica) -> None:
    """As a standby is, or a server of which a provider sees that its disk is full."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    replica.follow()
    database = f'ALTER DATABASE "{replica.target.name}"'
    replica.target.execute(f"{database} SET default_transaction_read_only = on")
    replica.captured.run("INSERT INTO t VALUES (1);\n")
    with pytest.raises(TargetUnavailable):
        replica.follow()
    with replica.target.connect() as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"{database} RESET default_transaction_read_only".encode())
    replica.follow()
    replica.check_equal("t")


def test_a_constraint_that_looks_last(replica: Replica) -> None:
    """It is violated when the transaction ends: which row that is about is known."""
    replica.captured.run("CREATE TABLE p (id int PRIMARY KEY);\n")
    replica.captured.run("CREATE TABLE c (id int PRIMARY KEY, p int);\n")
    replica.follow()
    replica.target.execute(
        "ALTER TABLE c ADD CONSTRAINT known FOREIGN KEY (p) REFERENCES p"
        " DEFERRABLE INITIALLY DEFERRED"
    )
    replica.captured.run("INSERT INTO c VALUES (7, 3), (8, 2), (9, 1), (10, 2);\n")
    replica.captured.run("INSERT INTO p VALUES (2), (3);\n")
    state = replica.follow({"on_error": "park"})
    assert state.parked["public.c"].message == "the target refuses a row by constraint known"
    assert 'In public.c, key {"id": "9"}, at ' in state.parked["public.c"].detail
    replica.check_equal("p")
    replica.captured.run("INSERT INTO p VALUES (1);\n")
    replica.follow({"on_error": "park"})
    replica.resume()
    assert not replica.follow({"on_error": "park"}).parked
    replica.check_equal("p", "c")


@pytest.mark.slow
def test_what_waits_for_a_parked_table(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """A foreign key to rows that are not there yet would stop the pipeline for good."""
    for each in (database, target):
        each.execute("CREATE TABLE p (id int, v int); CREATE TABLE c (id int, p int)")
    database.execute("INSERT INTO p VALUES (1, 1), (2, 2); INSERT INTO c VALUES (1, 1), (2, 2)")
    later = (
        "ALTER TABLE ONLY public.p ADD CONSTRAINT p_key PRIMARY KEY (id)",
        "ALTER TABLE ONLY public.c ADD CONSTRAINT c_key PRIMARY KEY (id)",
        "ALTER TABLE ONLY public.c ADD CONSTRAINT c_p FOREIGN KEY (p) REFERENCES public.p(id)",
    )
    for statement in later:
        database.execute(statement)
    with target.connect() as connection:
        prepare(connection)
        store_after_rows(connection, PIPELINE, later)
    target.execute("ALTER TABLE p ADD CONSTRAINT small CHECK (v < 2)")
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    names = (
        "SELECT conname FROM pg_constraint WHERE conname IN ('p_key', 'c_key', 'c_p') ORDER BY 1"
    )
    assert list(replica.follow({"on_error": "park"}).parked) == ["public.p"]
    replica.check_equal("c")
    assert target.execute(names) == [("c_key",), ("p_key",)]
    target.execute("ALTER TABLE p DROP CONSTRAINT small")
    replica.resume()
    replica.follow({"on_error": "park"})
    database.execute("INSERT INTO p VALUES (3, 3)")
    replica.follow({"on_error": "park"})
    replica.check_equal("p", "c")
    assert target.execute(names) == [("c_key",), ("c_p",), ("p_key",)]


@pytest.mark.slow
def test_a_target_that_is_made_anew(
    spark: SparkSession, make_captured: MakeCaptured, database: Database, target: Database
) -> None:
    """What was parked, and where the pipeline was, is of tables that are gone."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    replica = Replica(spark, make_captured(database, snapshot="initial"), target)
    config = replica.config(PARK)
    schemas = TargetSchemas(config, [PIPELINE])
    assert InitialSnapshot(config, spark, schemas=schemas).take()
    replica.follow(PARK)
    target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (v < 50)")
    replica.captured.run("INSERT INTO t VALUES (2, 100);\n")
    assert list(replica.follow(PARK).parked) == ["public.t"]
    replica.captured.run("ALTER TABLE t ADD COLUMN w int DEFAULT 3;\nDELETE FROM t WHERE id = 1;\n")
    target.execute("DROP TABLE t")
    assert InitialSnapshot(config, spark, schemas=schemas).take()
    assert not replica.follow(PARK).parked
    replica.captured.run("UPDATE t SET w = 4;\n")
    assert not replica.follow(PARK).parked
    replica.check_equal("t")
    assert target.execute("SELECT count(*) FROM pgtide.parked") == [(0,)]
