"""The demo from start to finish: server, init, capture, kill -9, capture again, proof.

Everything lies in one temporary directory, which is gone afterwards whatever
happens, Ctrl-C included; ``keep`` names a directory for the log and its
configuration instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from pgtide.demo import workload
from pgtide.demo.live import Screen
from pgtide.demo.proof import Findings, read_back
from pgtide.demo.workload import Shop
from pgtide.errors import ConfigError, PgtideError
from pgtide.log.reader import Log
from pgtide.postgres.embedded import EmbeddedPostgres

FLUSH_INTERVAL = "100ms"
PAUSE_S = 0.4  # between the shop's transactions, for people who watch
PATIENCE_S = 60.0  # for anything that has to happen at last
POLL_S = 0.01

CONFIG = """\
source:
  url: {url}
  snapshot: never
log:
  path: ./log
  flush_interval: {flush}
"""


class Clock:
    """Where the time goes: seconds per stage, in order."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self.stages[name] = 0.0  # in the order in which they begin
        yield
        self.stages[name] = time.monotonic() - began


class Demo:
    """One run; ``findings`` and ``shop`` are there when it has ended well."""

    def __init__(self, screen: Screen, keep: Path | None) -> None:
        self.screen = screen
        self.clock = Clock()
        self._keep = keep
        self._failure: BaseException | None = None
        self._capture: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()  # or an interrupted demo could leave a capture behind
        self._over = threading.Event()

    def run(self) -> Findings:
        """Run it and clean up."""
        if self._keep is not None and (self._keep / "log").exists():
            raise ConfigError(
                f"{self._keep} holds a log already",
                hint="Name another directory: pgtide demo --keep DIR",
            )
        with ExitStack() as stack:
            found = self._run(stack)
            leaving = time.monotonic()
        self.clock.stages["clean up"] = time.monotonic() - leaving
        return found

    def _run(self, stack: ExitStack) -> Findings:
        with self.clock.stage("start Postgres"):
            scratch = Path(stack.enter_context(_directory()))
            server = stack.enter_context(EmbeddedPostgres(scratch / "postgres"))
            connection = stack.enter_context(psycopg.connect(server.url(), autocommit=True))
            connection.execute(workload.SCHEMA)
        self.screen.say(f"✓ Postgres {connection.info.server_version // 10000} in {scratch}")
        self.shop = Shop(connection)
        self._home = self._keep or scratch
        self._home.mkdir(parents=True, exist_ok=True)
        self._errors = scratch / "capture.err"
        self._config = self._home / "pgtide.yaml"
        self._config.write_text(CONFIG.format(url=server.url(), flush=FLUSH_INTERVAL))
        self._init()
        stack.callback(self._end_capture)
        with self.clock.stage("start capture"):
            self._start_capture()
        self._watch()
        with self.clock.stage("read the log back"):
            return read_back(Log(self._home / "log"), server.url())

    # -- stages ------------------------------------------------------------------

    def _init(self) -> None:
        self.screen.say("$ pgtide init", "bold")
        with self.clock.stage("init"):
            done = subprocess.run(self._command("init"), capture_output=True, text=True)
        if done.returncode:
            raise PgtideError("pgtide init failed", detail=done.stderr.strip())
        self.screen.say(done.stdout.rstrip())

    def _watch(self) -> None:
        """Print what arrives while the shop, in another thread, does business."""
        self.screen.say("\n  visible       position event    table     values", "dim")
        business = threading.Thread(target=self._business, name="shop", daemon=True)
        business.start()
        with self.clock.stage("the shop's day"):
            self._print_until_closing()
            business.join()

    def _print_until_closing(self) -> None:
        deadline = time.monotonic() + PATIENCE_S

        def give_up() -> bool:
            return self._failure is not None or time.monotonic() > deadline

        for event in Log(self._home / "log").events(follow=True, stop=give_up):
            self.screen.event(event)
            if event.payload and event.payload.get("prefix") == workload.CLOSING:
                return
        raise self._failure or PgtideError(
            "the last event did not arrive", detail=self._capture_said()
        )

    def _business(self) -> None:
        try:
            for _ in workload.before_the_kill(self.shop):
                self._over.wait(PAUSE_S)
            with self.clock.stage("of it without a capture"):
                self.shop.place_orders(2)
                self._kill_capture()
                workload.while_nobody_captures(self.shop)
                self._start_capture()
            for _ in workload.after_the_restart(self.shop):
                self._over.wait(PAUSE_S)
        except BaseException as error:  # shown by the thread that prints
            self._failure = error

    # -- the capture process --------------------------------------------------------

    def _command(self, name: str) -> list[str]:
        start = "from pgtide.cli import main; main()"
        return [sys.executable, "-c", start, name, "-c", str(self._config)]

    def _start_capture(self) -> None:
        began = time.time()
        with self._starting, open(self._errors, "ab") as errors:
            if self._over.is_set():
                return
            process = self._capture = subprocess.Popen(
                self._command("capture"), stdout=subprocess.DEVNULL, stderr=errors
            )
        self.screen.say(f"$ pgtide capture      # process {process.pid}", "bold")
        status = self._home / "log" / "capture.json"
        while not (status.exists() and status.stat().st_mtime >= began):
            if process.poll() is not None or time.time() - began > PATIENCE_S:
                raise PgtideError("pgtide capture did not start", detail=self._capture_said())
            time.sleep(POLL_S)

    def _kill_capture(self) -> None:
        process = self._capture
        if process is not None:
            process.kill()
            process.wait()
            self.screen.say(f"$ kill -9 {process.pid}       # the capture, in mid-flight", "bold")

    def _end_capture(self) -> None:
        with self._starting:
            self._over.set()
            if self._capture is not None:
                self._capture.terminate()
                self._capture.wait()

    def _capture_said(self) -> str:
        return self._errors.read_text()[-2000:].strip()


@contextmanager
def _directory() -> Iterator[str]:
    """A temporary directory that the server's user can reach."""
    with TemporaryDirectory(prefix="pgtide-demo-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield name


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: by cleaning up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
