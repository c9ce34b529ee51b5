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
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import pgtide
from pgtide.cli import run_command as run
from pgtide.demo.live import Screen
from pgtide.demo.run import interruptible
from pgtide.demo.running import Running
from pgtide.spark import java
from tests.fixtures.waiting import wait_until

COMMAND = [sys.executable, "-c", "from pgtide.cli import main; main()", "demo", "--seconds", "4"]
PATIENCE_S = 280.0  # Spark starts twice in it, on a busy machine


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
    """Command lines of processes that work below the directory, or were told to."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            told = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(scratch) in text + told:
            found.append(text)
    return found


def assert_nothing_left(scratch: Path) -> None:
    assert list(scratch.iterdir()) == []
    # Python workers of a Spark that was killed see its end of their pipe close, and end.
    wait_until(lambda: processes_of(scratch) == [], "the last process to end", 10)


def test_the_shop_is_captured_and_everything_is_proven(scratch: Path, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    done = subprocess.run(
        [*COMMAND, "--keep", str(keep)],
        env=environment(scratch),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown = done.stdout
    assert "✗" not in shown
    assert re.search(r"update +products +.*manual=UNCHANGED", shown)
    assert re.search(r"update +orders +.*quantity=\d+→\d+", shown)
    assert re.search(r"ddl +customers +ALTER TABLE customers RENAME COLUMN email TO contact", shown)
    assert re.search(r"kill -9 \d+", shown)
    counted = re.search(r"✓ (\d+) events in (\d+) transactions .* committed (\d+) in (\d+)", shown)
    assert counted is not None
    assert counted[1] == counted[3]
    assert counted[2] == counted[4]
    assert "id integer, name text, contact text, points integer" in shown
    sides = re.findall(r"(\w+) +(\d+)  ([0-9a-f]{32}) +(\d+)  ([0-9a-f]{32})  =", shown)
    assert [side[0] for side in sides] == ["customers", "orders", "products", "visits"]
    assert all((rows, source) == (n, lake) for _, rows, source, n, lake in sides)
    asked = shown.partition("Asked of the pivot\n")[2].partition("\n\n")[0]
    answers = re.findall(r"^  (\S.*\?)\n    (.+)$", asked, re.MULTILINE)
    assert len(answers) == 3
    assert re.search(r"customer 2 .*\n +\d+ × quantity", asked)
    assert f"{keep}/lake/public/" in shown
    assert f"{keep}/audit/public/orders" in shown
    assert "Where the time went" in shown
    assert_nothing_left(scratch)

    events = list(pgtide.Log(keep / "log").events())
    assert len(events) == int(counted[1])
    assert any(pgtide.UNCHANGED is value for e in events for value in (e.after or {}).values())
    pivot = DeltaTable(str(keep / "audit" / "public" / "orders"))
    assert [field.name for field in pivot.schema().fields][:3] == ["id", "customer", "change_field"]

    again = subprocess.run([*COMMAND, "--keep", str(keep)], capture_output=True, text=True)
    assert again.returncode == 2
    assert "holds a log already" in again.stderr


def captures(scratch: Path) -> bool:
    return any(scratch.glob("*/log/capture.json"))


def has_a_pipeline(scratch: Path) -> bool:
    return any(scratch.glob("*/log/pipelines/*/state.json"))


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGINT, captures),
        pytest.param(signal.SIGTERM, has_a_pipeline, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_cleans_up(
    scratch: Path, number: signal.Signals, when: Callable[[Path], bool]
) -> None:
    demo = subprocess.Popen(
        [*COMMAND, "--json"],
        env=environment(scratch),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: when(scratch), "pgtide to run", PATIENCE_S)
        assert any("pgtide" in process for process in processes_of(scratch))
        demo.send_signal(number)
        shown, _ = demo.communicate(timeout=60)
    finally:
        demo.kill()  # nothing, where it has ended
        rest = demo.communicate()[0] if demo.returncode is None else ""
    assert (demo.returncode, shown, rest) == (130, "", "")
    assert_nothing_left(scratch)


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "PLACES", ())
    monkeypatch.setattr(java, "_packaged", lambda: None)
    assert run(["demo"]) == 3
    said = capsys.readouterr().err
    assert "there is no Java 17 or 21" in said
    assert java.INSTALL in said


@pytest.mark.slow
def test_json(scratch: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--json"],
        env=environment(scratch),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["ok"] is True
    assert summary["events"] == summary["committed"]
    assert {"table": "customers", "op": "ddl", "events": 2} in summary["counts"]
    assert all(table["equal"] for table in summary["tables"])
    assert all(table["source"] == table["lake"] for table in summary["lake"])
    assert summary["pivot"]["rows"] == summary["pivot"]["expected"] > 0
    assert all(answer["answer"] == answer["counted"] for answer in summary["pivot"]["answers"])
    assert_nothing_left(scratch)


def test_an_interruption_that_python_drops_is_heard_all_the_same() -> None:
    """An exception that a weak reference's callback raises is printed and forgotten."""

    class Thing:
        pass

    thing = Thing()
    dropped: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, interruptible() as interrupted:
        patch.setattr(sys, "unraisablehook", dropped.append)
        kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert kept() is None
        assert [error.exc_type for error in dropped] == [KeyboardInterrupt]
        running = Running(Screen(quiet=True), Path("/"), Path("/"), interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.require_life()
