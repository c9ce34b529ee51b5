"""``pgtide skip``: which statements may be left out at a target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtide.cli import run_command as pgtide
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.bookkeeping import prepare, write_progress
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


@pytest.fixture
def config(captured: Captured, target: Database) -> Path:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
ALTER TABLE t ADD COLUMN v text;
"""
    )
    captured.capture()
    pipelines = {
        "replica": {"sink": {"type": "postgres", "url": target.url}},
        "past": {"sink": {"type": "postgres", "url": target.url, "mode": "history"}},
        "out": {"sink": {"type": "stdout"}},
    }
    path = captured.directory / "pgtide.yaml"
    path.write_text(json.dumps({**captured.settings, "pipelines": pipelines}))
    return path


def skip(config: Path, *arguments: object) -> int:
    return pgtide(["-c", str(config), "skip", *map(str, arguments)])


def test_a_statement_is_noted_once(
    config: Path, captured: Captured, target: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    created, altered = (event.position for event in captured.events("ddl"))
    with connect(target.url) as connection:
        prepare(connection)
        write_progress(connection, "replica", created, "log")
    assert skip(config, altered, "--pipeline", "replica") == 0
    said = f"pipeline replica leaves out the ALTER TABLE of public.t at {altered}"
    assert said in capsys.readouterr().out
    assert skip(config, altered, "-p", "replica", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "pipeline": "replica",
        "position": str(altered),
        "tag": "ALTER TABLE",
        "table": "public.t",
        "again": True,
    }
    assert target.execute("SELECT pipeline, lsn::text, seq FROM pgtide.skipped") == [
        ("replica", str(altered.lsn), altered.seq)
    ]
    assert skip(config, created, "-p", "replica") == 2
    assert "is applied already" in capsys.readouterr().err


def test_what_is_no_statement(
    config: Path, captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    (insert,) = (event.position for event in captured.events("insert"))
    for position, detail in (
        (insert, "The log has another event (insert) there"),
        (Position(insert.lsn, insert.seq + 1), "The log has nothing there"),
        (Position(Lsn(insert.lsn + (1 << 30))), "The log has nothing there"),
    ):
        assert skip(config, position, "-p", "replica") == 2
        said = capsys.readouterr().err
        assert "is not the position of a DDL statement" in said
        assert detail in said
    assert skip(config, insert, "-p", "past") == 2
    assert "pipeline past writes a history" in capsys.readouterr().err
    assert skip(config, insert, "-p", "out") == 2
    assert "has no Postgres target" in capsys.readouterr().err
    assert skip(config, "nonsense", "-p", "replica") == 2


def test_a_target_that_cannot_be_written_to(
    config: Path, captured: Captured, target: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    created = captured.events("ddl")[0].position
    target.execute(f"ALTER DATABASE {target.name} SET default_transaction_read_only = on")
    assert skip(config, created, "--pipeline", "replica") == 1
    said = capsys.readouterr().err
    assert "error: the target did not do it" in said
    assert f"hint: Run it again: pgtide skip --pipeline replica {created}" in said
