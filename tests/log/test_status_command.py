"""``pgtide status`` with the source up and down, with and without slot, log and capture."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from pgtide.cli import run_command as run
from pgtide.postgres.slot import capture_lock_key


@pytest.fixture(autouse=True)
def short_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtide.cli.status_facts.SAMPLE_SECONDS", 0.1)


@pytest.fixture
def status(
    small_log: Any, database: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    def call(*options: str, url: str = database.url, log: str = small_log.path) -> Any:
        path = tmp_path / "pgtide.yaml"
        path.write_text(
            f"source: {{url: '{url}', slot: {database.name}}}\nlog: {{path: '{log}'}}\n"
        )
        code = run(["-c", str(path), "status", *options])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in options else out

    return call


def _slot(database: Any) -> None:
    with psycopg.connect(database.url, autocommit=True) as conn:
        # Slots belong to the whole server: one that no other test uses.
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])


def _capture(log: Any, **fields: Any) -> None:
    document = {
        "pid": os.getpid(),
        "started_at": datetime.now(UTC).isoformat(),
        "updated_at": datetime.now(UTC).isoformat(),
        "gear": "live",
        "position": "0/1",
        "events": 12,
        "events_per_second": 3.0,
        "lag_bytes": 0,
        "last_error": None,
        "counters": {},
        **fields,
    }
    log.storage.replace("capture.json", json.dumps(document).encode())


@contextmanager
def _attached(database: Any) -> Iterator[psycopg.Connection[Any]]:
    """What the server sees of a capture."""
    with psycopg.connect(database.url, autocommit=True) as conn:
        conn.execute(SQL("SELECT pg_advisory_lock({})").format(capture_lock_key(database.name)))
        yield conn


def test_all_is_well(status: Any, database: Any, small_log: Any) -> None:
    _slot(database)
    small_log.append([{"lsn": 1000, "committed_at": datetime.now(UTC)}])
    _capture(small_log)
    with _attached(database):
        code, facts = status("--json")
        assert status()[0] == 0
        assert "live, 3 events/s" in status()[1]
    assert code == 0, facts
    assert facts["ok"]
    assert facts["slot"]["exists"]
    assert not facts["slot"]["active"]
    assert facts["slot"]["retained_bytes"] >= 0
    assert facts["log"]["position"] == "0/3E9"
    assert facts["log"]["lag_bytes"] > 0
    assert 0 <= facts["log"]["lag_seconds"] < 60
    assert facts["capture"]["running"]
    assert facts["capture"]["events_per_second"] == 3.0


def test_a_backlog_is_read_through_a_copy_of_the_slot(
    status: Any, database: Any, small_log: Any
) -> None:
    _slot(database)
    small_log.append([{"lsn": 1000}])
    _capture(small_log, gear="bulk")
    with _attached(database) as capture:
        assert f"✓ slot {database.name}: not active" in status()[1], "it is about to read"
        copy = f"{database.name}_copy"
        capture.execute(
            "SELECT pg_copy_logical_replication_slot(%s, %s, true)", [database.name, copy]
        )
        slot = status("--json")[1]["slot"]
        assert (slot["active"], slot["copied"]) == (True, True)
        assert slot["active_pid"] == capture.info.backend_pid
        assert f"✓ slot {database.name}: read through a temporary copy" in status()[1]
    assert f"! slot {database.name}: not active" in status()[1]


def test_a_capture_that_the_server_does_not_see(status: Any, database: Any, small_log: Any) -> None:
    """Its last word is a second old, and the server knows better."""
    _slot(database)
    small_log.append([{"lsn": 1000}])
    _capture(small_log)
    code, facts = status("--json")
    assert (code, facts["capture"]["running"]) == (1, False)
    assert "✗ capture: gone, last heard of" in status()[1]
    error = {"at": "now", "type": "LogUnavailable", "message": "no room", "hint": "free some"}
    _capture(small_log, gear="waiting", last_error=error)
    code, text = status()
    assert code == 1
    assert "waiting to try again" in text
    # An error that it has recovered from does not make a clean stop a failure.
    _capture(small_log, gear="stopped", last_error=error)
    code, text = status()
    assert code == 0
    assert "! capture: stopped at" in text


def test_the_source_is_down(status: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 1000}])
    url = "postgresql://app:secret@127.0.0.1:1/shop"
    code, facts = status("--json", url=url)
    assert code == 3
    assert facts["source"]["error"]["type"] == "SourceUnavailable"
    assert facts["slot"] is None
    assert facts["log"] == {"position": "0/3E9", "lag_bytes": None, "lag_seconds": None}
    code, text = status(url=url)
    assert code == 3
    assert "✗ source" in text
    assert "secret" not in text


def test_no_slot_and_no_log(status: Any, tmp_path: Path) -> None:
    code, facts = status("--json", log=str(tmp_path / "nothing"))
    assert code == 1
    assert not facts["slot"]["exists"]
    assert facts["log"]["error"]["type"] == "LogMissing"
    assert facts["capture"] is None
    _, text = status(log=str(tmp_path / "nothing"))
    assert "pgtide init" in text
    assert "never ran" in text


def test_a_capture_that_stopped_with_an_error(status: Any, database: Any, small_log: Any) -> None:
    _slot(database)
    error = {"at": "now", "type": "SlotInvalidated", "message": "it is gone", "hint": "do this"}
    long_ago = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    _capture(small_log, updated_at=long_ago, last_error=error)
    code, facts = status("--json")
    assert code == 1
    assert not facts["capture"]["running"]
    _, text = status()
    assert "it is gone" in text
    assert "do this" in text


def test_an_idle_log_is_not_behind(status: Any, database: Any, small_log: Any) -> None:
    """A commit that carries only a position says that there was nothing to log."""
    _slot(database)
    small_log.append([{"lsn": 1000}])  # years old
    small_log.append([])
    _, facts = status("--json")
    assert facts["log"]["lag_seconds"] < 60
