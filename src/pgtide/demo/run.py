"""The demo from start to finish: server, init, run, kill -9, run again, proof.

Everything lies in one temporary directory, which is gone afterwards whatever
happens, Ctrl-C included; ``keep`` names a directory for the log, the lake and
their configuration instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from pgtide.demo import answers, day, lake, workload
from pgtide.demo.live import Screen
from pgtide.demo.proof import read_back
from pgtide.demo.report import Results
from pgtide.demo.running import PATIENCE_S, Running, command
from pgtide.demo.workload import Shop
from pgtide.errors import ConfigError, PgtideError
from pgtide.log.reader import Log
from pgtide.postgres.embedded import EmbeddedPostgres
from pgtide.spark import java
from pgtide.spark.jars import delta_jars

PAUSE_S = 0.4  # between the shop's transactions, for people who watch
FETCHING_S = 2.0  # what takes longer than that to find is being fetched

CONFIG = """\
source:
  url: {url}
  snapshot: never
log:
  path: ./log
  flush_interval: 100ms
pipelines:
  lake:                       # every table as it is at the source
    sink: {{type: delta, path: ./lake, mode: mirror}}
    tables: ["public.*"]
  audit:                      # a row for every field of an order that changed
    sink: {{type: delta, path: ./audit, mode: pivot, pivot: {{key: [id, customer]}}}}
    tables: [public.orders]
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
    """One run of the demo."""

    def __init__(
        self, screen: Screen, keep: Path | None, seconds: float, interrupted: threading.Event
    ) -> None:
        """``interrupted`` as ``interruptible`` gives it."""
        self.screen = screen
        self._interrupted = interrupted
        self.clock = Clock()
        self._keep = keep
        self._seconds = seconds
        self._failure: BaseException | None = None
        self._business = threading.Thread(target=self._do_business, name="shop", daemon=True)
        self._over = threading.Event()
        self._expected: tuple[int, float] | None = None  # batches of the pipelines, and since when

    def run(self) -> Results:
        """Run it and clean up."""
        if self._keep is not None and (self._keep / "log").exists():
            raise ConfigError(
                f"{self._keep} holds a log already",
                hint="Name another directory: pgtide demo --keep DIR",
            )
        self._require_spark()
        with ExitStack() as stack:
            results = self._run(stack)
            leaving = time.monotonic()
        self.clock.stages["clean up"] = time.monotonic() - leaving
        return results

    def _run(self, stack: ExitStack) -> Results:
        with self.clock.stage("start Postgres"):
            scratch = Path(stack.enter_context(_directory()))
            server = stack.enter_context(EmbeddedPostgres(scratch / "postgres"))
            connection = stack.enter_context(psycopg.connect(server.url(), autocommit=True))
            connection.execute(workload.SCHEMA)
        self.screen.say(f"✓ Postgres {connection.info.server_version // 10000} in {scratch}")
        self._shop = Shop(connection)
        self._home = self._keep or scratch
        self._home.mkdir(parents=True, exist_ok=True)
        self._config = self._home / "pgtide.yaml"
        self._config.write_text(CONFIG.format(url=server.url()))
        self._running = Running(self.screen, self._home, scratch, self._interrupted)
        self._init()
        stack.callback(self._end)
        with self.clock.stage("start capture"):
            self._running.start()
        self._watch()
        with self.clock.stage("pipelines catch up"):
            self.screen.say("\n… the shop is closed, the pipelines apply what is left", "dim")
            states = self._running.wait_until_applied()
        with self.clock.stage("stop"):
            self.screen.say("$ kill -TERM              # pgtide run ends cleanly", "bold")
            self._running.stop()
        with self.clock.stage("compare"):
            return Results(
                shop=self._shop,
                log=read_back(Log(self._home / "log"), server.url()),
                tables=lake.compare(server.url(), self._home / "lake"),
                audit=answers.ask(self._home / "audit", self._shop),
                mirrored=lake.show(lake.mirror(self._home / "lake", "customers")),
                applied={name: state.rows for name, state in states.items()},
                batches={name: state.batches for name, state in states.items()},
            )

    # -- stages ------------------------------------------------------------------

    def _require_spark(self) -> None:
        """Say what is missing before anything is started."""
        fetching = "… fetching Delta for Spark, this once"
        notice = threading.Timer(FETCHING_S, self.screen.say, [fetching, "dim"])
        notice.start()
        try:
            with self.clock.stage("find Java and Delta"):
                java.find()
                delta_jars()
        finally:
            notice.cancel()

    def _init(self) -> None:
        self.screen.say("$ pgtide init", "bold")
        with self.clock.stage("init"):
            done = subprocess.run(command("init", self._config), capture_output=True, text=True)
        if done.returncode:
            raise PgtideError("pgtide init failed", detail=done.stderr.strip())
        self.screen.say(done.stdout.rstrip())

    def _watch(self) -> None:
        """Print what arrives while the shop, in another thread, does business."""
        self.screen.say("  visible       position event    table     values", "dim")
        self._business.start()
        with self.clock.stage("the shop's day"):
            self._print_until_closing()
            self._business.join()

    def _print_until_closing(self) -> None:
        deadline = time.monotonic() + self._seconds + 2 * PATIENCE_S

        def give_up() -> bool:
            over = self._failure is not None or self._interrupted.is_set()
            return over or time.monotonic() > deadline

        for event in Log(self._home / "log").events(follow=True, stop=give_up):
            self.screen.event(event)
            if event.payload and event.payload.get("prefix") == workload.CLOSING:
                return
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        raise self._failure or PgtideError(
            "the last event did not arrive", detail=self._running.said()
        )

    def _end(self) -> None:
        self._over.set()
        self._running.end()
        if self._business.is_alive():  # before its connection is closed
            self._business.join(PATIENCE_S)

    # -- the shop, in a thread of its own --------------------------------------------

    def _do_business(self) -> None:
        shop, traffic = self._shop, day.busy()
        try:
            self._expect_pipelines(0)
            day.opening(shop)
            day.half_a_day(shop, day.MORNING, self._seconds / 2, self._pause, traffic)
            # Something is to be in the lake when it happens, however slow the machine.
            day.keep_busy(shop, self._pause, traffic, lambda: self._expected is None)
            with self.clock.stage("of it without capture"):
                applied = self._kill()
                day.while_nobody_listens(shop)
                self._running.start()
            self._expect_pipelines(applied)
            day.half_a_day(shop, day.AFTERNOON, self._seconds / 2, self._pause, traffic)
            day.closing(shop)
        except BaseException as error:  # shown by the thread that prints
            self._failure = error

    def _kill(self) -> int:
        """In mid-flight; how many batches the pipelines had applied."""
        self._shop.place_order()
        number = self._running.kill()
        what = "run, capture and Java, in mid-flight"
        self.screen.say(f"$ kill -9 {number}         # {what}", "bold")
        return self._running.batches()

    def _expect_pipelines(self, applied: int) -> None:
        """Have it said when they have applied more batches than that."""
        self.screen.say("… Spark is starting; capture does not wait for it", "dim")
        self._expected = (applied, time.monotonic())

    def _pause(self) -> None:
        self._running.require_life()
        if self._over.wait(PAUSE_S):
            raise PgtideError("the demo was interrupted")
        if self._expected is not None and self._running.batches() > self._expected[0]:
            took = time.monotonic() - self._expected[1]
            self.screen.say(f"✓ the pipelines are at work, after {took:.0f} s", "green")
            self._expected = None


@contextmanager
def _directory() -> Iterator[str]:
    """A temporary directory that the server's user can reach."""
    with TemporaryDirectory(prefix="pgtide-demo-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield name


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """SIGTERM ends the demo as Ctrl-C does: by cleaning up.

    The event is set then as well. Python drops an exception that is raised while a weak
    reference's callback runs, as it does at the end of every import; who waits looks at it.
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    previous = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
