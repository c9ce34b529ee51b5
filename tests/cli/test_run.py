"""``pgtide run``, ``resume``, ``replay`` and the pipelines in ``status``, as processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from pgtide.cli import run_command as pgtide
from pgtide.cli.marks import print_line
from pgtide.cli.run import beside_events
from pgtide.config import Config
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.fixtures.workload import Workload

SPARK = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.databricks.delta.snapshotPartitions": 1,
    },
}
START_S = 180.0  # a process with Spark in it, on a busy machine


class Running:
    """``pgtide`` commands on one configuration."""

    def __init__(self, captured: Captured, **pipelines: Any) -> None:
        self.captured = captured
        self.lake = captured.directory / "lake"
        lake = {"sink": {"type": "delta", "path": str(self.lake)}, "interval": "100ms"}
        settings = {**captured.settings, "spark": SPARK, "pipelines": {"lake": lake, **pipelines}}
        self.config = captured.directory / "pgtide.yaml"
        self.config.write_text(json.dumps(settings))
        self.output = captured.directory / "run.log"

    def start(
        self, *arguments: str, fault: str = "", start_new_session: bool = False
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from pgtide.cli import main; main()"]
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [*command, "-c", str(self.config), *arguments],
                cwd=self.captured.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PGTIDE_FAULT": fault},
                start_new_session=start_new_session,
            )

    def finish(self, *arguments: str, fault: str = "") -> int:
        return self.start(*arguments, fault=fault).wait(START_S)

    def said(self) -> str:
        return self.output.read_text()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """A mirror, read without Spark."""
        place = self.lake / "public" / table
        if not DeltaTable.is_deltatable(str(place)):
            return []
        query = QueryBuilder().register("t", DeltaTable(str(place))).execute("SELECT * FROM t")
        found = pa.table(query.read_all()).to_pylist()
        return sorted(
            tuple(value for name, value in row.items() if not name.startswith("_pgtide_"))
            for row in found
        )

    def equal(self, *tables: str) -> bool:
        return all(
            self.rows(table) == sorted(self.captured.execute(f"SELECT * FROM {table}"))
            for table in tables
        )

    def capture_pid(self) -> int:
        document = json.loads((self.captured.directory / "log" / "capture.json").read_text())
        return int(document["pid"])


@pytest.fixture
def running(captured: Captured) -> Running:
    captured.run("CREATE TABLE t (id int PRIMARY KEY, note text);\n")
    captured.run("INSERT INTO t SELECT n, 'n' || n FROM generate_series(1, 50) n;\n")
    return Running(captured)


def test_run_survives_its_capture_and_stops_cleanly(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = running.captured
    process = running.start("run", "--json")
    try:
        wait_until(lambda: running.equal("t"), "the mirror", START_S)
        os.kill(running.capture_pid(), signal.SIGKILL)
        captured.run(
            "UPDATE t SET note = 'changed' WHERE id % 2 = 0;\nDELETE FROM t WHERE id > 40;"
        )
        wait_until(lambda: running.equal("t"), "what came after capture died", START_S)
        assert pgtide(["-c", str(running.config), "replay", "--pipeline", "lake", "--yes"]) == 1
        assert "is running already" in capsys.readouterr().err
        process.terminate()
        assert process.wait(START_S) == 0, running.said()
    finally:
        process.kill()
        process.wait()
    assert "starting it again" in running.said()
    summary = json.loads(running.said().splitlines()[-1])
    assert summary["pipelines"]["lake"]["status"] == "stopped"
    assert summary["pipelines"]["lake"]["tables"]["public.t"] >= 85

    monkeypatch.setattr("pgtide.cli.status_facts.SAMPLE_SECONDS", 0.0)
    assert pgtide(["-c", str(running.config), "status", "--json"]) == 0
    (lake,) = json.loads(capsys.readouterr().out)["pipelines"]
    assert (lake["configured"], lake["running"], lake["lag_bytes"]) == (True, False, 0)
    assert lake["last_batch"]["rows"] > 0
    assert pgtide(["-c", str(running.config), "status"]) == 0
    assert "pipeline lake: not running, at " in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_that_all_processes_hear(running: Running) -> None:
    """As timeout and systemd send it: Java ends along, which is no failure."""
    process = running.start("run", "--json", start_new_session=True)
    try:
        wait_until(lambda: running.equal("t"), "the mirror", START_S)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(START_S) == 0, running.said()
    finally:
        process.kill()
        process.wait()
    summary = json.loads(running.said().splitlines()[-1])
    assert summary["pipelines"]["lake"]["status"] == "stopped"


@pytest.mark.parametrize("names", [["lake"], ["lake", "print"], ["print"]])
def test_events_have_stdout_alone(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sinks = {"lake": {"type": "delta", "path": "lake"}, "print": {"type": "stdout"}}
    config = Config.model_validate(
        {
            "source": {"url": "host=db"},
            "log": {"path": "log"},
            "pipelines": {name: {"sink": sink} for name, sink in sinks.items()},
        }
    )
    with beside_events(config, names):
        print_line("ok", "done", "a hint")
    said = capsys.readouterr()
    assert (said.err if "print" in names else said.out) == "✓ done\n    a hint\n"
    assert (said.out if "print" in names else said.err) == ""


@pytest.mark.parametrize(
    ("pipelines", "arguments", "code", "said"),
    [
        ({}, [], 2, "no pipeline is configured"),
        ({"lake": {"sink": {"type": "stdout"}}}, ["--pipeline", "pond"], 2, "no pipeline pond"),
        ({"lake": {"sink": {"type": "stdout"}}}, [], 1, "pgtide init"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    pipelines: Any,
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "pgtide.yaml"
    document = {
        "source": {"url": "host=nowhere.invalid"},
        "log": {"path": str(tmp_path / "log")},
        "pipelines": pipelines,
    }
    config.write_text(json.dumps(document))
    program = (
        "import sys; from pgtide.cli import run_command as run; code = run(sys.argv[1:]); "
        "print('pyspark' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "-c", str(config), "run", *arguments],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (code, "False")
    assert said in done.stderr


KEPT = """
import signal, sys
from pgtide.cli.run import spark_session
from pgtide.config import Config
heard = lambda number, frame: None
signal.signal(signal.SIGINT, heard)
source = {"source": {"url": "host=db"}, "log": {"path": "log"}}
config = Config.model_validate(source | {"spark": {"master": "local[1]"}})
spark = spark_session(config, hears_signals=True)
print(signal.getsignal(signal.SIGINT) is heard, spark.sql("SELECT 1").collect()[0][0])
spark.stop()
"""


def test_spark_leaves_the_signals_alone(tmp_path: Path) -> None:
    """PySpark's handler asks Java from within whatever it interrupts, Spark's start included."""
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, cwd=tmp_path, timeout=START_S
    )
    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_between_any_two_steps(running: Running) -> None:
    """Between the sink and the state, and between the state and the reader; then a replay."""
    captured = running.captured
    for number, point in enumerate(("pipeline.written:1", "pipeline.saved:1") * 2):
        captured.run(f"UPDATE t SET note = note || '{number}' WHERE id % 3 = 0;\n")
        captured.run(f"INSERT INTO t VALUES ({100 + number}, 'new');\n")
        code = running.finish("run", "--until-current", fault=point)
        assert code == -signal.SIGKILL, running.said()
    assert running.finish("run", "--until-current") == 0, running.said()
    assert running.equal("t")
    assert running.finish("replay", "--pipeline", "lake", "--yes") == 0, running.said()
    assert running.equal("t")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_moments(make_captured: MakeCaptured, database: Database) -> None:
    database.execute(Workload.TABLES)
    running = Running(make_captured(database))
    chance = random.Random(7)
    with Workload(database, sessions=2):
        for _ in range(8):
            process = running.start("run")
            ended = _ended(process)
            with pytest.raises(AssertionError):
                wait_until(ended, timeout_s=chance.uniform(6, 25))
            process.kill()
            process.wait()
    flushed(database)
    assert running.finish("run", "--until-current") == 0, running.said()
    assert running.equal("account", "series")
    columns = "session, number, part, xid::text"
    assert running.rows("entry") == sorted(database.execute(f"SELECT {columns} FROM entry"))


def _ended(process: subprocess.Popen[bytes]) -> Callable[[], bool]:
    return lambda: process.poll() is not None
