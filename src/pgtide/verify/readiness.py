"""Waiting until a pipeline has applied what the source had committed at a position.

What runs elsewhere is waited for. Where nobody captures, that is done here until the end of the
``with`` block; where nobody runs the pipeline, that is done here until current.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Self

from pgtide.capture.pacing import is_time
from pgtide.config.model import Config
from pgtide.errors import Interrupted, PipelineError
from pgtide.log.reader import Log
from pgtide.log.refreshes import RefreshStore
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.pipeline.lag import is_ahead
from pgtide.pipeline.lease import holder_of
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import connect
from pgtide.verify.moment import NAME, nudge
from pgtide.verify.own_capture import OwnCapture
from pgtide.verify.spark_when_needed import SparkWhenNeeded, started

FIRST_POLL_S = 0.02  # what is nearly there is seen at once
POLL_S = 0.2
SLOWER = 1.25  # each look comes so many times as late as the one before
PATIENCE_S = 600.0  # without any progress of whoever runs elsewhere
HELP_S = 5.0
# An object store does not tell whether a pipeline runs: for so long its state is watched first.
SILENCE_S = 30.0


@dataclass
class Readiness:
    """A pipeline and the log before it."""

    spark: SparkWhenNeeded
    config: Config
    pipeline: str
    stop: threading.Event = field(default_factory=threading.Event)
    run_here: bool = True  # whether what does not run may be run here
    told: Callable[[], Position | None] = lambda: None  # the last that the target says to have

    def __post_init__(self) -> None:
        self._storage = Storage(self.config.log.path, self.config.log.storage)
        self._log = Log(self.config.log.path, self.config.log.storage)
        self._file = StateFile(self._storage, self.pipeline)
        self._capture = OwnCapture(self.config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._capture.stop()

    def leave(self) -> None:
        """Nothing is waited for any more: our own capture may end, beside whatever comes next."""
        self._capture.leave()

    def state(self) -> State | None:
        return self._file.load()

    def capture(self) -> None:
        """See to it that somebody captures, and raise what stopped him if it was us."""
        if self.run_here:
            self._capture.check()
            self._capture.ensure()

    def reach(self, lsn: Lsn, check: Callable[[], None] | None = None) -> None:
        """Return when everything that was committed before ``lsn`` is in the target.

        ``check`` is called meanwhile, and raises when it is not to be waited for any more.
        """
        if not self._logged(lsn)[0]:
            self.capture()
        self._wait(lambda: self._logged(lsn), f"the log to reach {lsn}", check, self._nudge)
        if self.run_here and not self._applied(lsn)[0] and not self._runs():
            self._run(check)
        self._wait(
            lambda: self._applied(lsn),
            f"pipeline {self.pipeline} to apply {lsn}",
            check,
            lambda: self._look_after(check),
        )

    def settle(self, tables: Collection[str]) -> None:
        """Return when all rows of these tables that we are reading again are in the log.

        Capture begins that by itself after DDL that changed rows without telling.
        """
        if self._capture.running:
            self._wait(lambda: self._settled(tables), "rows that are read again")

    # -- where they are -----------------------------------------------------------------

    def _logged(self, lsn: Lsn) -> tuple[bool, object]:
        position = self._log.position
        return position >= lsn, position

    def _applied(self, lsn: Lsn) -> tuple[bool, object]:
        state = self._file.load()
        snapshot = self._log.snapshot()
        if state is not None and state.resuming is not None:
            return False, state.position
        if state is not None and _has(state.position, snapshot, lsn):
            return True, state.position
        # The state is saved after the target was written, and the target may know more by then.
        if (told := self.told()) is not None:
            return _has(Position(told.lsn, told.seq + 1), snapshot, lsn), told
        return state is None and not _rows_until(snapshot, lsn), state and state.position

    def _settled(self, tables: Collection[str]) -> tuple[bool, object]:
        store = RefreshStore(self._storage)
        going_on = [
            store.standing(request.id)
            for request in store.requests()
            if request.table in tables
            and request.whole
            and store.is_open(request.id)
            and store.control(request.id) == "run"
        ]
        done = not going_on or not is_time(self.config.history.window)
        return done, [(standing.state, standing.rows, standing.chunks) for standing in going_on]

    def _wait(
        self,
        look: Callable[[], tuple[bool, object]],
        what: str,
        check: Callable[[], None] | None = None,
        help_on: Callable[[], None] | None = None,
    ) -> None:
        moved_at = helped_at = time.monotonic()
        done, last = look()
        pause = FIRST_POLL_S
        while not done:
            if self.stop.wait(pause):
                raise Interrupted("the verification was stopped")
            pause = min(POLL_S, pause * SLOWER)
            if check is not None:
                check()
            self._capture.check()
            done, seen = look()
            now = time.monotonic()
            if seen != last:
                last, moved_at = seen, now
            if now - moved_at > PATIENCE_S:
                raise PipelineError(
                    f"waited in vain for {what}",
                    detail=f"Nothing has moved for {PATIENCE_S:.0f} s.",
                    hint="Run: pgtide status",
                )
            if help_on is not None and now - helped_at > HELP_S:
                helped_at = now
                help_on()

    def _nudge(self) -> None:
        self.capture()  # whoever did may have ended
        with connect(self.config.source.url.reveal(), application_name=NAME) as connection:
            nudge(connection)

    # -- doing it here --------------------------------------------------------------------

    def _runs(self) -> bool:
        if self._storage.local is not None:
            return holder_of(self._storage, self.pipeline) is not None
        began, before = time.monotonic(), self._position()
        while time.monotonic() - began < SILENCE_S:
            if self._position() != before:
                return True
            if self.stop.wait(POLL_S):
                return True
        return False

    def _position(self) -> object:
        state = self._file.load()
        return None if state is None else (state.position, state.batches)

    def _look_after(self, check: Callable[[], None] | None) -> None:
        """Whoever ran the pipeline may have ended: without a word, or for good.

        One that tries again after a pause is waited for.
        """
        if not self.run_here or self._storage.local is None or self._runs():
            return
        error = self._file.error()
        if error is None:
            self._run(check)
        elif not error["transient"]:
            raise PipelineError(
                f"pipeline {self.pipeline} has failed: {error['message']}",
                detail=error["detail"],
                hint=error["hint"],
            )

    def _run(self, check: Callable[[], None] | None) -> None:
        """Run the pipeline until current; no longer than is waited for it."""
        enough, done = threading.Event(), threading.Event()
        why: list[Exception] = []

        def watch() -> None:
            while not done.wait(POLL_S) and not enough.is_set():
                try:
                    if check is not None:
                        check()
                except Exception as error:  # raised where it is waited
                    why.append(error)
                if why or self.stop.is_set():
                    enough.set()

        run = PipelineRun(started(self.spark), self.config, self.pipeline, stop=enough)
        watcher = threading.Thread(target=watch, name="end of waiting", daemon=True)
        watcher.start()
        try:
            run.run(until_current=True)
        finally:
            done.set()
            watcher.join()
        if why:
            raise why[0]


def _has(position: Position, snapshot: Snapshot, lsn: Lsn) -> bool:
    """Whether nothing until ``lsn`` is at this position or behind it."""
    return not any(is_ahead(f, position) and f.low.lsn <= lsn for f in snapshot.files)


def _rows_until(snapshot: Snapshot, lsn: Lsn) -> bool:
    return any(file.low.lsn <= lsn for file in snapshot.files)
