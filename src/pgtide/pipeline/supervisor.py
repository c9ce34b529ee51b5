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
from typing import TYPE_CHECKING

from pgtide.config.model import Config
from pgtide.errors import EnvironmentMissing, PgtideError, TransientError
from pgtide.log.reader import Log
from pgtide.pipeline.backoff import Backoff
from pgtide.pipeline.capture_process import STOP_S, UNTIL_CURRENT_PATIENCE_S, CaptureProcess
from pgtide.pipeline.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

TICK_S = 0.25


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
        threads = [threading.Thread(target=self.capture.run, name="pgtide-capture")]
        threads[0].start()
        try:
            spark = self._open_session()
            if self._until_current:
                self._wait(lambda: self.capture.finished)
            if not self._over:
                threads += [
                    threading.Thread(target=self._supervise, args=(spark, member), name=name)
                    for name, member in self.members.items()
                ]
                pipelines = threads[1:]
                if not self._until_current:
                    threads += self._verifications(spark)
                for thread in threads[1:]:
                    thread.start()
                self._wait(lambda: self._until_current and not _alive(pipelines))
        finally:
            self._stop.set()
            self.capture.stop()
            threads[0].join(STOP_S)
            self.capture.kill()
            for thread in threads:
                thread.join()
        if self._fatal is not None or self.capture.error is not None:
            raise self._fatal or self.capture.error or AssertionError

    @property
    def _over(self) -> bool:
        return self._stop.is_set() or self.capture.error is not None or self._fatal is not None

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and not self._over:
            self._stop.wait(TICK_S)
            if self._tick is not None:
                self._tick(self)

    def _verifications(self, spark: SparkSession) -> list[threading.Thread]:
        """A thread for each pipeline whose mirrors are to be verified in the background."""
        names = [name for name in self.members if self._config.pipelines[name].verify is not None]
        if not names:
            return []
        from pgtide.verify.continuous import ContinuousVerification  # Spark comes with it

        return [
            threading.Thread(
                target=ContinuousVerification(spark, self._config, name, self._stop).run,
                name=f"{name}-verify",
            )
            for name in names
        ]

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
                except PgtideError as error:
                    if not self._again(member, backoff, error):
                        return
            member.status = "stopped"
        except BaseException as error:
            # A defect: told by whoever called run().
            self._fatal = error

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
