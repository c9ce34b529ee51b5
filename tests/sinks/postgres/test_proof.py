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
from collections.abc import Callable
from contextlib import suppress
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
        self.full = 0  # looks that found all accounts

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
            right = row == (ACCOUNTS, ACCOUNTS * BALANCE)
            self.full += right
            if not right and (self.full or row != (0, 0)):  # empty until the rows have come
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
    """The child that captures, whichever thread has started it."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(OSError):  # a thread or a child that has ended meanwhile
            for pid in (thread / "children").read_text().split():
                if b"pgtide.cli.attached" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
    return None


def _reached(target: Database) -> str | None:
    """How far the target is, None when it does not say."""
    try:
        found = target.execute("SELECT lsn::text FROM pgtide.progress")
    except psycopg.Error:
        return None
    return str(found[0][0]) if found else None


class Killed:
    """Lives of ``pgtide run`` that all end by kill -9."""

    def __init__(self, config: Path, output: Path, target: Database) -> None:
        self._config, self._output, self._target = config, output, target
        self._dice = random.Random(11)
        self.kills = 0

    def live(self, *, blindly: bool, restart: Callable[[], None] | None = None) -> None:
        """Until the target has come further, and capture was killed alone; or not so long."""
        before = _reached(self._target)
        process = _start(self._config, self._output, "run")
        try:
            if blindly:
                self._wait(process, 3, 25)
            else:
                while _reached(self._target) in (None, before):
                    _lives_for(process, 0.2, self._output)
                self._wait(process, 0, 6)
                self._kill_capture(process)
                self._wait(process, 0, 6)
            if restart is not None:
                restart()
                self._wait(process, 0, 3)
        finally:
            process.kill()
            process.wait()
            self.kills += 1

    def _kill_capture(self, process: subprocess.Popen[bytes]) -> None:
        while (capture := _capture_of(process)) is None:
            _lives_for(process, 0.05, self._output)
        os.kill(capture, signal.SIGKILL)
        self.kills += 1

    def _wait(self, process: subprocess.Popen[bytes], least: float, most: float) -> None:
        _lives_for(process, self._dice.uniform(least, most), self._output)


@pytest.mark.slow
@pytest.mark.timeout(2400)
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
    killed, lives = Killed(config, output, target), 0
    with Sampled(target.url) as sampled:
        with Writers(database) as writers:
            while killed.kills < KILLS:
                restart = (lambda: server.restart("immediate")) if lives in (1, 4) else None
                killed.live(blindly=lives % 3 == 2, restart=restart)
                lives += 1
        flushed(database)
        began = time.monotonic()
        ended = _start(config, output, "run", "--until-current").wait()
        assert ended == 0, output.read_text()[-4000:]
    assert not sampled.wrong, sampled.wrong[:5]
    assert sampled.full > 50
    assert len(writers.rounds) == 4
    assert min(writers.rounds.values()) > 500, writers.rounds
    assert _start(config, output, "verify", "--pipeline", PIPELINE).wait() == 0, output.read_text()[
        -4000:
    ]
    took = time.monotonic() - began
    assert "starting it again" in output.read_text(), "capture was killed alone"
    print(f"{killed.kills} kills in {lives} lives, {sampled.full} looks, caught up in {took:.0f} s")
    target.drop()
