"""No server at the URL, or one that hangs up: exit code 3 and the next command, from everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgtide.capture import engine
from pgtide.cli import run_command as run
from tests.fixtures.capture import MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.proxy import Proxy
from tests.fixtures.waiting import wait_until

COMMANDS = {
    "check": ["check"],
    "init": ["init"],
    "status": ["status"],
    "capture": ["capture", "--until-current"],
    "destroy": ["destroy", "--yes"],
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "IN_HASTE_PATIENCE_S", 0.0)
    monkeypatch.setattr("pgtide.cli.status_facts.SAMPLE_SECONDS", 0.0)


def config_file(tmp_path: Path, settings: Any, url: str) -> str:
    path = tmp_path / "pgtide.yaml"
    path.write_text(json.dumps({**settings, "source": {**settings["source"], "url": url}}))
    return str(path)


@pytest.mark.parametrize("url", ["host=127.0.0.1 port=1", "host=nowhere.invalid", "host=/nowhere"])
def test_nobody_listens(
    url: str, make_captured: MakeCaptured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(tmp_path, make_captured().settings, f"{url} password=hunter2")
    for command in COMMANDS.values():
        assert run([*command, "-c", config]) == 3, command
        said = "".join(capsys.readouterr())
        assert "pgtide check" in said, command
        assert "hunter2" not in said
    assert run(["status", "--json", "-c", config]) == 3
    error = json.loads(capsys.readouterr().out)["source"]["error"]
    assert (error["type"], error["exit_code"]) == ("SourceUnavailable", 3)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_server_that_hangs_up(
    command: list[str],
    make_captured: MakeCaptured,
    proxy: Callable[[Database], Proxy],
    database: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever byte of each connection it stops at."""
    link = proxy(database)
    config = config_file(tmp_path, make_captured().settings, link.url)
    for size in (1, 9, 20, 100, 300, 400, 430, 450, 460, 500, 600, 700):
        for _ in range(5):
            link.cut_after(size)
        code = run([*command, "-c", config])
        printed = capsys.readouterr()
        assert code == 3, (size, printed)
        assert "pgtide check" in printed.out + printed.err
        link.let_pass(0)


@pytest.mark.parametrize("mode", ["require", "verify-full", "bogus"])
def test_tls_that_cannot_be(
    mode: str,
    make_captured: MakeCaptured,
    proxy: Callable[[Database], Proxy],
    database: Database,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server has none. Trying again would change nothing, nor would starting a server."""
    url = proxy(database).url.replace("sslmode=disable", f"sslmode={mode}")
    config = config_file(tmp_path, make_captured().settings, url)
    for command in COMMANDS.values():
        assert run([*command, "-c", config]) == 2, command
        assert "sslrootcert" in "".join(capsys.readouterr())


def test_a_capture_that_runs_for_ever_keeps_trying(
    make_captured: MakeCaptured, proxy: Callable[[Database], Proxy], database: Database
) -> None:
    link = proxy(database)
    captured = make_captured(url=link.url, admin_url=database.url)
    link.refuse()
    before = link.connections
    with captured.capturing("live") as running:
        wait_until(lambda: link.connections >= before + 3, "it to try again")
        assert running.progress.gear in ("waiting", "starting")
        link.refuse(False)
        running.wait(flushed(database))
    assert running.progress.last_error is not None
    assert running.progress.last_error["type"] == "SourceUnavailable"
