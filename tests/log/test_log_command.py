"""``pgtide log tail | show | compact`` as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgtide.cli import run_command as run

COMMAND = [sys.executable, "-c", "import sys; from pgtide.cli import main; main()"]


@pytest.fixture
def config(small_log: Any, tmp_path: Path) -> str:
    path = tmp_path / "pgtide.yaml"
    path.write_text(
        f"source: {{url: 'postgresql://app@db/shop'}}\nlog: {{path: '{small_log.path}'}}\n"
    )
    return str(path)


def _tail(config: str, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert run(["-c", config, "log", "tail", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_tail(small_log: Any, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    small_log.commit_each(3)
    small_log.append([{"lsn": 2000, "table": "events", "shape": 2, "after": ["1", None]}])
    lines = _tail(config, capsys)
    assert [line["position"] for line in lines] == [
        *(f"0/{lsn:X}:{seq}" for lsn in (1000, 1010, 1020) for seq in (0, 1)),
        "0/7D0:0",
    ]
    assert len(_tail(config, capsys, "--limit", "3")) == 3
    assert _tail(config, capsys, "--limit", "0") == []
    assert [e["table"] for e in _tail(config, capsys, "--table", "eve*")] == ["events"]
    assert len(_tail(config, capsys, "-t", "orders", "-t", "events")) == 7
    assert len(_tail(config, capsys, "--from", "0/3FC:1")) == 2
    assert _tail(config, capsys, "--from", "now") == []
    assert _tail(config, capsys, "--format", "debezium", "--limit", "1")[0]["op"] == "c"
    assert _tail(config, capsys, "--format", "pgstream", "--limit", "1")[0]["action"] == "I"
    assert _tail(config, capsys, "--format", "pg_flo", "--limit", "1")[0]["Type"] == "INSERT"


def test_wrong_options(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-c", config, "log", "tail", "--from", "yesterday"]) == 2
    assert run(["-c", config, "log", "tail", "--format", "avro"]) == 2
    assert run(["-c", config, "log", "tail", "--table", "a.b.c"]) == 2


def test_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pgtide.yaml"
    path.write_text("source: {url: 'postgresql://app@db/shop'}\nlog: {path: ./nothing}\n")
    for command in ("tail", "show", "compact"):
        assert run(["-c", str(path), "log", command]) == 1
        assert "pgtide init" in capsys.readouterr().err


def test_show(small_log: Any, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    small_log.commit_each(2)
    assert run(["-c", config, "log", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 4
    assert run(["-c", config, "log", "show"]) == 0
    out = capsys.readouterr().out
    assert "4  public.orders" in out
    assert "0/3F3" in out


def test_compact(small_log: Any, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    small_log.commit_each(4)
    assert run(["-c", config, "log", "compact"]) == 0
    # The rows are years old, so retention takes them before they are merged.
    assert "dropped 4" in capsys.readouterr().out
    assert run(["-c", config, "log", "compact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files_dropped"] == 0


def _start(config: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "-c", config, "log", "tail", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_quietly_when_told_to(
    small_log: Any, config: str, number: signal.Signals
) -> None:
    small_log.append([{"lsn": 1000}])
    with _start(config, "--follow") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["lsn"] == "0/3E8"
        small_log.append([{"lsn": 1010}])
        assert json.loads(process.stdout.readline())["lsn"] == "0/3F2"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")


def test_a_reader_that_goes_away_is_no_error(small_log: Any, config: str) -> None:
    small_log.commit_each(3)
    small_log.append([{"lsn": 5000, "seq": seq} for seq in range(5000)])
    with _start(config) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
