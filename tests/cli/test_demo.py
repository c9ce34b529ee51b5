"""``pgtide demo`` as a user runs it: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgtide
from tests.fixtures.waiting import wait_until

COMMAND = [sys.executable, "-c", "from pgtide.cli import main; main()", "demo"]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The demo's directory for temporary files; the server's user has to reach it."""
    directory = Path(tempfile.mkdtemp(prefix="pgtide-test-demo-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def environment(scratch: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(scratch)}


def processes_of(scratch: Path) -> list[str]:
    """Command lines of processes that work below the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(scratch) in text:
            found.append(text)
    return found


def assert_nothing_left(scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    assert processes_of(scratch) == []


def test_the_shop_is_captured_and_everything_is_proven(scratch: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    done = subprocess.run(
        [*COMMAND, "--keep", str(keep)],
        env=environment(scratch),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout
    assert "✗" not in shown
    assert re.search(r"update +products +.*manual=UNCHANGED", shown)
    assert re.search(r"ddl +customers +ALTER TABLE customers RENAME COLUMN email TO contact", shown)
    assert re.search(r"kill -9 \d+", shown)
    counted = re.search(r"✓ (\d+) events in (\d+) transactions .* committed (\d+) in (\d+)", shown)
    assert counted is not None
    assert counted[1] == counted[3]
    assert counted[2] == counted[4]
    assert "id integer, name text, contact text, points integer" in shown
    assert "Where the time went" in shown
    assert_nothing_left(scratch)

    events = list(pgtide.Log(keep / "log").events())
    assert len(events) == int(counted[1])
    assert any(pgtide.UNCHANGED is value for e in events for value in (e.after or {}).values())

    again = subprocess.run([*COMMAND, "--keep", str(keep)], capture_output=True, text=True)
    assert again.returncode == 2
    assert "holds a log already" in again.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_demo_cleans_up(scratch: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--json"],
        env=environment(scratch),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: list(scratch.glob("*/log/capture.json")), "the capture to run", 60)
    assert processes_of(scratch) != []
    demo.send_signal(number)
    shown, _ = demo.communicate(timeout=30)
    assert (demo.returncode, shown) == (130, "")
    assert_nothing_left(scratch)


@pytest.mark.slow
def test_json(scratch: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--json"], env=environment(scratch), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["ok"] is True
    assert summary["events"] == summary["committed"]
    assert {"table": "customers", "op": "ddl", "events": 2} in summary["counts"]
    assert all(table["equal"] for table in summary["tables"])
    assert_nothing_left(scratch)
