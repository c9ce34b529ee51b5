"""``pgtide init``, ``check`` and ``destroy`` as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgtide.cli import run_command as run
from tests.fixtures.databases import Database


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Path:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    path = tmp_path / "pgtide.yaml"
    source = {"url": database.url, "slot": database.name}
    path.write_text(json.dumps({"source": source, "log": {"path": "log"}}))
    return path


def pgtide(config: Path, *arguments: str) -> int:
    return run([*arguments, "-c", str(config)])


def unread(config: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout nobody reads any more, as with ``| head``."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-c", "from pgtide.cli import main; main()", *arguments],
            cwd=config.parent,
            env={**os.environ, **environment},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    return done.returncode, done.stderr


def test_a_closed_stdout_changes_no_exit_code(config: Path) -> None:
    assert unread(config, "check", PYTHONUNBUFFERED="") == (1, "")
    assert unread(config, "init", PYTHONUNBUFFERED="1") == (0, "")
    assert unread(config, "check", PYTHONUNBUFFERED="1") == (0, "")
    assert unread(config, "log", "show", PYTHONUNBUFFERED="1") == (0, "")


def test_from_nothing_to_nothing(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pgtide(config, "check") == 1
    printed = capsys.readouterr().out
    assert "✗ slot: there is no slot" in printed
    assert "history" not in printed, "nobody knows yet which tables will be published"
    assert pgtide(config, "init") == 0
    assert f"✓ replication slot {database.name}\n" in capsys.readouterr().out
    assert pgtide(config, "init") == 0
    assert f"✓ replication slot {database.name} (already there)" in capsys.readouterr().out
    assert pgtide(config, "check", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert set(document["checks"][0]) == {"name", "level", "message", "hint"}
    assert pgtide(config, "destroy", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"][0].startswith("replication slot")


def test_dry_run_prints_sql_alone(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pgtide(config, "init", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert not (config.parent / "log").exists()
    assert pgtide(config, "init", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"sql": printed.removesuffix("\n")}
    with database.connect() as conn:
        conn.execute(printed.encode())
    assert pgtide(config, "init", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["log_created"] is True
    assert document["slot_created"] is True
    assert {step["state"] for step in document["steps"]} <= {"already", "note"}


def test_destroy_asks(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pgtide(config, "destroy") == 1
    assert "removed" not in capsys.readouterr().out


def test_log_that_cannot_be_made_takes_the_slot_with_it(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "log").write_text("a file is in the way")
    assert pgtide(config, "init") == 1
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
    assert pgtide(config, "check") == 1
    assert "✗ log: " in capsys.readouterr().out


def test_sinks_that_cannot_be_written(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "plain").write_text("a file is in the way")
    sinks = {
        "lake": {"type": "delta", "path": "plain"},
        "files": {"type": "file", "path": "plain/below"},
        "odd": {"type": "delta", "path": "a%20lake"},
        "fine": {"type": "delta", "path": "new/lake"},
        "far": {"type": "file", "path": "s3://bucket/files"},
        "out": {"type": "stdout"},
    }
    document = json.loads(config.read_text())
    document["pipelines"] = {name: {"sink": sink} for name, sink in sinks.items()}
    config.write_text(json.dumps(document))
    assert pgtide(config, "init") == 0
    capsys.readouterr()
    assert pgtide(config, "check", "--json") == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    found = [check for check in checks if check["level"] == "fail"]
    assert [check["name"] for check in found] == ["sink"] * 3
    plain = config.parent / "plain"
    assert found[0]["message"] == f"lake: {plain} is not a directory"
    assert found[0]["hint"] == "Correct pipelines.lake.sink.path."
    assert found[1]["message"] == f"files: {plain} is not a directory"
    assert found[2]["message"].startswith("odd: ")
    assert [check["message"] for check in checks if check["name"] == "sink"][3:] == [
        f"fine: {config.parent / 'new' / 'lake'} is writable"
    ]
    assert plain.is_file()
    assert not (config.parent / "new").exists()


def test_log_that_was_moved_away(config: Path, database: Database) -> None:
    assert pgtide(config, "init") == 0
    database.execute(
        f"SELECT pg_replication_slot_advance('{database.name}', pg_current_wal_insert_lsn())"
    )
    (config.parent / "log").rename(config.parent / "elsewhere")
    assert pgtide(config, "init") == 1


def test_rows_that_the_role_may_not_read(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before the snapshot fails; not where no rows are to be read."""
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    config = tmp_path / "pgtide.yaml"

    def checked(url: str, snapshot: str = "initial") -> str:
        source = {"url": url, "slot": database.name, "admin_url": database.url}
        settings = {"source": {**source, "snapshot": snapshot}, "log": {"path": "log"}}
        config.write_text(json.dumps(settings))
        pgtide(config, "init")
        capsys.readouterr()
        pgtide(config, "check", "--json")
        lines = json.loads(capsys.readouterr().out)["checks"]
        return " ".join(f"{c['level']} {c['hint']}" for c in lines if c["name"] == "history")

    url = database.create_role("LOGIN REPLICATION")
    refused = checked(url)
    assert refused.startswith("fail As the owner of the tables run: GRANT SELECT")
    assert checked(url, "never") == ""
    database.execute(refused.partition("run: ")[2])
    assert checked(url) == "ok "
