"""``pgtide cutover``, as a process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtide.cli import run_command as pgtide
from tests.cli.test_run import Running
from tests.cli.test_snapshot import command
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.fixtures.spark import Staying
from tests.fixtures.waiting import interrupted
from tests.sinks.postgres.replicas import Replica


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


@pytest.fixture
def running(captured: Captured, target: Database) -> Running:
    captured.run("CREATE TABLE t (id serial PRIMARY KEY, note text);\n")
    captured.run("INSERT INTO t (note) SELECT 'n' || n FROM generate_series(1, 50) n;\n")
    sink = {"type": "postgres", "url": target.url}
    return Running(captured, replica={"sink": sink}, past={"sink": {**sink, "mode": "history"}})


def test_what_needs_no_spark(
    running: Running, target: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["-c", str(running.config)]
    assert pgtide([*config, "cutover", "--pipeline", "lake"]) == 2
    assert "pipeline lake has no Postgres target" in capsys.readouterr().err
    assert pgtide([*config, "cutover", "--pipeline", "past"]) == 2
    assert "pipeline past writes a history" in capsys.readouterr().err
    for option in ("--wait", "--until-quiet"):
        assert pgtide([*config, "cutover", option, "5"]) == 2
        assert "is not a duration" in capsys.readouterr().err
    assert pgtide([*config, "cutover", "--sequences-only"]) == 1
    assert "the target does not have them: public.t_id_seq" in capsys.readouterr().out
    target.execute("CREATE SEQUENCE t_id_seq")
    assert pgtide([*config, "cutover", "--sequences-only", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "pipeline": "replica",
        "set": ["public.t_id_seq"],
        **{key: [] for key in ("equal", "missing", "ahead", "unreadable")},
    }
    assert target.execute("SELECT nextval('t_id_seq')") == [(51,)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command(running: Running, target: Database) -> None:
    assert running.finish("run", "--until-current", "--pipeline", "replica") == 0, running.said()
    running.captured.execute("INSERT INTO t (note) VALUES ('late')")
    done = command(running, "cutover", "--read-only", "--no-verify", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ready"]
    assert document["verification"] is None
    assert {check["level"] for check in document["checks"]} == {"ok"}
    assert target.execute("SELECT count(*), max(note) FROM t") == [(51, "n9")]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        running.captured.execute("DELETE FROM t")
    running.captured.execute(document["undo"])
    target.execute("INSERT INTO pgtide.after_rows VALUES ('replica', 1, 'SELECT 1')")
    done = command(running, "cutover", "--read-only", "--no-verify")
    assert done.returncode == 1
    assert "✗ schema: 1 statements wait" in done.stdout
    assert "not ready" in done.stdout
    assert "can be written to again" in done.stdout
    running.captured.execute("DELETE FROM t")


def test_ctrl_c(
    spark: SparkSession,
    running: Running,
    target: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "pgtide.cli.cutover.spark_session", lambda config, hears_signals: Staying(spark)
    )
    assert Replica(spark, running.captured, target).follow().batches == 1
    begun = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgtide cutover'"
    begun += " AND datname = current_database() AND query LIKE '%pg_logical_emit_message%'"
    with interrupted(lambda: running.captured.execute(begun)):
        command = ["cutover", "--pipeline", "replica", "--until-quiet", "1h", "--wait", "2h"]
        assert pgtide(["-c", str(running.config), *command]) == 130
    assert "error: the cutover was stopped" in capsys.readouterr().err
