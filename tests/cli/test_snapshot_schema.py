"""``pgtide snapshot --schema``."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as pgtide
from pgtide.position import Lsn
from tests.cli.test_run import Running
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database, Server
from tests.fixtures.spark import Staying

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, note text);
INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n;
CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t);
CREATE VIEW notes AS SELECT note FROM t;
"""


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


@pytest.fixture
def running(make_captured: MakeCaptured, database: Database, target: Database) -> Running:
    database.execute(TABLES)
    sink = {"type": "postgres", "url": target.url}
    pipelines = {"replica": {"sink": sink}, "past": {"sink": {**sink, "mode": "history"}}}
    return Running(make_captured(database, snapshot="initial"), **pipelines)


def test_a_target_is_made_with_the_rows_in_the_log(
    spark: SparkSession,
    running: Running,
    target: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("pgtide.cli.snapshot.copying_session", lambda config: Staying(spark))
    call = ["-c", str(running.config), "snapshot", "--schema"]
    assert pgtide([*call, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert document["schemas"] == {"replica": {"tables": 2, "after_rows": 3}}
    assert (document["rows"], document["left_out"]) == (1000, [])
    ((lsn,),) = target.execute("SELECT lsn::text FROM pgtide.progress WHERE pipeline = 'replica'")
    assert Lsn.parse(lsn) == Lsn.parse(document["point"]) - 2
    assert target.execute("SELECT count(*) FROM t") == [(0,)]
    assert pgtide(call) == 1
    assert "the target is not empty" in capsys.readouterr().err


def test_wrong_use_is_told_without_spark(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["--schema", "--tables", "public.t"], "goes with a snapshot of everything"),
        (["--schema", "--pipeline", "lake"], "pipeline lake has no Postgres target"),
        (["--schema", "--pipeline", "past"], "pipeline past writes a history"),
        (["--schema", "--pipeline", "nowhere"], "there is no pipeline nowhere"),
        (["--pipeline", "replica"], "Add --schema"),
    ):
        assert pgtide(["-c", str(running.config), "snapshot", *arguments]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_between_log_and_target(running: Running, target: Database) -> None:
    code = running.finish("snapshot", "--schema", fault="snapshot_schema:1")
    assert code == -signal.SIGKILL, running.said()
    assert target.execute("SELECT to_regclass('t'), to_regnamespace('pgtide')") == [(None, None)]
    running.captured.execute("ALTER TABLE t ADD COLUMN more int")
    assert running.finish("snapshot", "--schema") == 0, running.said()
    running.captured.check_log()
    assert "made the schema of 2 tables for pipeline replica" in running.said()
    ((lsn,),) = target.execute("SELECT lsn::text FROM pgtide.progress WHERE pipeline = 'replica'")
    assert Lsn.parse(lsn) == running.captured.log.source.snapshot - 2
    assert target.execute("SELECT more FROM t") == []
