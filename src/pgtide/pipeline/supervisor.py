"""Capture and pipelines together: what ``pgtide run`` runs.

    capture (a process) ──▶ log ──▶ pipelines (a thread each, in one Spark session)

Each is started again after a transient failure. A pipeline that fails for good stays down
while the others and capture go on; capture that fails for good, or a Spark that is gone,
ends the run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pgtide.config.model import Config
from pgtide.errors import EnvironmentMissing, PgtideError, TransientError
from pgtide.log.reader import Log
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.pipeline.backoff import Backoff
from pgtide.pipeline.capture_process import STOP_S, UNTIL_CURRENT_PATIENCE_S, CaptureProcess
from pgtide.pipeline.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

TICK_S = 0.25
TOGETHER_S = 2.0  # within which a signal to all processes is heard by each of them


@dataclass
class Member:
    """A pipeline as its supervisor sees it."""

    name: str
    status: str = "starting"  # running; waiting to try again; current, stopped, failed
    state: State | None = None
    error: PgtideError | None = None


class Supervisor:
    """Runs everything until it is stopped, or is current."""

    def __init__(
        self,
        config: Config,
        pipelines: Sequence[str],
        capture: Sequence[str],
        open_session: Callable[[], SparkSession],
        *,
        until_current: bool = False,
        tick: Callable[[Supervisor], None] | None = None,
    ) -> None:
        """``capture``: the command line of a capture as ``CaptureProcess`` wants it."""
        self._config = config
        self._open_session = open_session
        self._until_current = until_current
        self._tick = tick
        self._stop = threading.Event()
        self._fatal: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self.capture = CaptureProcess(capture, until_current=until_current)
        self.members = {name: Member(name) for name in pipelines}

    def stop(self) -> None:
        """End ``run`` cleanly; safe to call from a signal handler."""
        self._stop.set()

    @property
    def failed(self) -> list[Member]:
        """Pipelines that are down for good."""
        return [member for member in self.members.values() if member.status == "failed"]

    @property
    def parked(self) -> list[Member]:
        """Pipelines with tables that wait."""
        return [m for m in self.members.values() if m.state is not None and m.state.parked]

    def run(self) -> None:
        """Run; raises what ended it, unless that was ``stop``."""
        Log(self._config.log.path, self._config.log.storage)  # says best what is missing
        capturing = self._start(self.capture.run, "pgtide-capture")
        try:
            spark = self._open_session()
            if self._until_current:
                while self._catch_up(spark):
                    self.capture.finished = False
                    capturing = self._start(self.capture.run, "pgtide-capture")
            elif not self._over:
                self._start_pipelines(spark)
                self._start_verifications(spark)
                self._wait(lambda: False)
        finally:
            self._stop.set()
            self.capture.stop()
            capturing.join(STOP_S)
            self.capture.kill()
            for thread in self._threads:
                thread.join()
        if self._fatal is not None or self.capture.error is not None:
            raise self._fatal or self.capture.error or AssertionError

    def _catch_up(self, spark: SparkSession) -> bool:
        """Apply what capture brings; whether pipelines have asked for more: for rows to be read."""
        self._wait(lambda: self.capture.finished)
        if self._over:
            return False
        left = self._open_refreshes()  # that capture leaves for later: paused, or not in time
        pipelines = self._start_pipelines(spark)
        self._wait(lambda: not _alive(pipelines))
        return not self._over and not self._open_refreshes() <= left

    def _open_refreshes(self) -> set[str]:
        store = RefreshStore(Storage(self._config.log.path, self._config.log.storage))
        return {request.id for request in store.requests() if store.is_open(request.id)}

    def _start_pipelines(self, spark: SparkSession) -> list[threading.Thread]:
        return [
            self._start(partial(self._supervise, spark, member), member.name)
            for member in self.members.values()
            if member.status != "failed"
        ]

    def _start_verifications(self, spark: SparkSession) -> None:
        """A thread for each pipeline whose mirrors are to be verified in the background."""
        names = [name for name in self.members if self._config.pipelines[name].verify is not None]
        if not names:
            return
        from pgtide.verify.continuous import ContinuousVerification  # Spark comes with it

        for name in names:
            verification = ContinuousVerification(spark, self._config, name, self._stop)
            self._start(verification.run, f"{name}-verify")

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name)
        self._threads.append(thread)
        thread.start()
        return thread

    @property
    def _over(self) -> bool:
        return self._stop.is_set() or self.capture.error is not None or self._fatal is not None

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and not self._over:
            self._stop.wait(TICK_S)
            if self._tick is not None:
                self._tick(self)

    # -- a pipeline, in its thread ------------------------------------------------------

    def _supervise(self, spark: SparkSession, member: Member) -> None:
        from pgtide.pipeline.running import PipelineRun  # Spark comes with it

        backoff = Backoff()

        def on_batch(_: str, state: State) -> None:
            member.state = deepcopy(state)
            backoff.progressed()

        try:
            while not self._stop.is_set():
                member.status = "running"
                try:
                    run = PipelineRun(
                        spark, self._config, member.name, stop=self._stop, on_batch=on_batch
                    )
                    member.state = run.run(until_current=self._until_current)
                    member.status = "stopped" if self._stop.is_set() else "current"
                    return
                except Exception as error:
                    if self._ends_with_java(spark):
                        break
                    if not isinstance(error, PgtideError):
                        raise
                    if not self._again(member, backoff, error):
                        return
            member.status = "stopped"
        except BaseException as error:
            # A defect: told by whoever called run().
            self._fatal = error

    def _ends_with_java(self, spark: SparkSession) -> bool:
        """Whether Java was told to end as we were: ``timeout`` and systemd tell all processes."""
        from pgtide.spark.failures import is_gone  # Spark comes with it

        return is_gone(spark) and self._stop.wait(TOGETHER_S)

    def _again(self, member: Member, backoff: Backoff, error: PgtideError) -> bool:
        """Wait for the next attempt, if there is to be one."""
        member.error = error
        patient = not self._until_current or backoff.stuck_s < UNTIL_CURRENT_PATIENCE_S
        said = f"{error.message}: {error.detail}".rstrip(": .")
        if isinstance(error, TransientError) and patient:
            pause = backoff.next_pause()
            member.status = "waiting"
            logger.warning("pipeline %s: %s; trying again in %.1f s", member.name, said, pause)
            self._stop.wait(pause)
            return True
        member.status = "failed"
        if isinstance(error, EnvironmentMissing):
            self._fatal = error
        else:
            logger.error("pipeline %s failed: %s. %s", member.name, said, error.hint)
        return False


def _alive(threads: Sequence[threading.Thread]) -> bool:
    return any(thread.is_alive() for thread in threads)
