"""How far source and target are, and waiting until the target has what the source had."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from pgtide.config import Config
from pgtide.cutover.unapplied import first_unapplied, first_write
from pgtide.errors import Interrupted
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.bookkeeping import read_progress
from pgtide.verify.moment import nudge
from pgtide.verify.readiness import Readiness

POLL_S = 0.2


class Late(Exception):
    """The target took longer than it may."""


@dataclass(frozen=True)
class Progress:
    """Of one pipeline."""

    config: Config
    pipeline: str
    source: SqlConnection
    target: SqlConnection
    readiness: Readiness
    stop: threading.Event

    def reached(self) -> Position:
        """What the target has everything up to."""
        return read_progress(self.target, self.pipeline)

    def mark(self) -> Lsn:
        """Whatever was committed before now is before this."""
        row = self.source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        nudge(self.source)  # a log that nothing is written to does not move
        return Lsn.parse(row[0])

    def reach(self, mark: Lsn, deadline: float) -> None:
        """Return when the target has everything up to a mark; ``Late`` if it takes too long."""

        def check() -> None:
            if time.monotonic() > deadline:
                raise Late

        self.readiness.reach(mark, check)  # log and pipeline; then what the target itself says
        while first_unapplied(self.config, self.pipeline, self.reached(), mark):
            check()
            self.pause()

    def written_since(self, mark: Lsn, deadline: float) -> tuple[Lsn, Position | None]:
        """Where the source is now, and the first change that was made between; ``reach`` first."""
        now = self.mark()
        self.reach(now, deadline)
        return now, first_write(self.config, self.pipeline, mark, now)

    def pause(self, seconds: float = POLL_S) -> None:
        """Wait a little; ends with an error if the cutover is to stop."""
        if self.stop.wait(seconds):
            raise Interrupted("the cutover was stopped", detail="The target is not ready.")
