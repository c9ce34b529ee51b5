"""Everything at once: writers, DDL, kill -9 of whatever runs, a target that restarts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.capture import MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.sinks.postgres.replicas import PIPELINE
from tests.sinks.postgres.writers import ACCOUNTS, BALANCE, TABLES, Writers

KILLS = int(os.environ.get("PGTIDE_TEST_KILLS", "20"))
ROOT = Path(__file__).resolve().parents[3]


class Sampled:
    """Looks at the target all the time: the sum is right whenever there is one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.wrong: list[tuple[int, int]] = []
        self.looks = 0

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            try:
                with psycopg.connect(self._url, connect_timeout=5) as connection:
                    query = "SELECT count(*), coalesce(sum(balance), 0) FROM accounts"
                    row = connection.execute(query).fetchone()
            except psycopg.Error:
                continue  # it is down, or the table is not there yet
            assert row is not None
            self.looks += 1
            if row not in ((0, 0), (ACCOUNTS, ACCOUNTS * BALANCE)):
                self.wrong.append(row)


def _start(config: Path, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    program = "from pgtide.cli import main; main()"
    with output.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-c", program, "-c", str(config), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )


def _lives_for(process: subprocess.Popen[bytes], seconds: float, output: Path) -> None:
    """Leave it alone for a while; it must not end by itself."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    pytest.fail(f"it ended by itself: {output.read_text()[-4000:]}")


def _capture_of(process: subprocess.Popen[bytes]) -> int | None:
    """The child that captures: the one that is not Java."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for pid in children.read_text().split() if children.exists() else ():
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"java" not in command.read_bytes():
            return int(pid)
    return None


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_replica_survives_everything(
    make_captured: MakeCaptured, database: Database, make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(fsync="on")
    target = Database.create(server)
    captured = make_captured(database)
    captured.run(";\n".join(TABLES.strip().split(";\n")))
    settings = {
        **captured.settings,
        "pipelines": {PIPELINE: {"sink": {"type": "postgres", "url": target.url}}},
    }
    config = tmp_path / "pgtide.yaml"
    config.write_text(json.dumps(settings))
    output = tmp_path / "run.log"
    dice = random.Random(11)
    with Sampled(target.url) as sampled:
        with Writers(database):
            for kill in range(KILLS):
                process = _start(config, output, "run")
                try:
                    _lives_for(process, dice.uniform(10, 28), output)
                    alone = _capture_of(process) if kill % 3 == 2 else None
                    if alone is not None:
                        os.kill(alone, signal.SIGKILL)
                        _lives_for(process, 3, output)
                    if kill in (5, 12):
                        server.restart("immediate")
                finally:
                    process.kill()
                    process.wait()
        flushed(database)
        began = time.monotonic()
        ended = _start(config, output, "run", "--until-current").wait()
        assert ended == 0, output.read_text()[-4000:]
    assert not sampled.wrong, sampled.wrong[:5]
    assert sampled.looks > 50
    assert _start(config, output, "verify", "--pipeline", PIPELINE).wait() == 0, output.read_text()[
        -4000:
    ]
    print(f"{sampled.looks} looks, caught up in {time.monotonic() - began:.0f} s")
    target.drop()
