"""Repairing what a verification found: exactly those rows are read again from the source."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from pgtide.config.model import Config
from pgtide.errors import ConfigError, Interrupted, PipelineError
from pgtide.log.refreshes import ENDED, Refresh, RefreshStore, Standing
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.snapshot.asking import checked
from pgtide.verify.readiness import Readiness
from pgtide.verify.report import REPAIRED, PipelineReport, TableReport
from pgtide.verify.spark_when_needed import SparkWhenNeeded

POLL_S = 0.2
PATIENCE_S = 600.0  # without any progress of the refresh


def request(table: TableReport) -> Refresh:
    """What brings a table right: its differing keys, or all of it when they are too many or none.

    A mirror may have a row whose key is NULL.
    """
    few = len(table.keys) == table.differing <= REPAIRED
    keys = tuple(dict.fromkeys(table.keys)) if few else None
    return Refresh(table.table, keys=keys, replace=True, oid=table.oid, reason="repair")


def repairable(table: TableReport) -> bool:
    """A table without a key has nothing by which a row could be read again."""
    return bool(table.differing and table.key)


@dataclass
class Repair:
    """Asks for refreshes, and waits until the pipeline has applied them."""

    spark: SparkWhenNeeded
    config: Config
    pipeline: str
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        storage = Storage(self.config.log.path, self.config.log.storage)
        self._store = RefreshStore(storage)

    def run(self, report: PipelineReport) -> list[str]:
        """Repair what can be; the tables that were."""
        requests = [self._request(table) for table in report.differing if repairable(table)]
        for one in requests:
            self._store.add(one)
        with Readiness(self.spark, self.config, self.pipeline, self.stop) as readiness:
            ends = [self._done(one, readiness) for one in requests]
            if ends:
                readiness.reach(max(ends))
        return [one.table for one in requests]

    def _request(self, table: TableReport) -> Refresh:
        """Keys as rows have them: a target may print its own otherwise, or have what is no key."""
        wanted = request(table)
        if wanted.keys is None:
            return wanted
        try:
            return checked(self.config, wanted)
        except ConfigError:
            return replace(wanted, keys=None)

    def _done(self, wanted: Refresh, readiness: Readiness) -> Lsn:
        """Wait until the log has the rows; up to where it has them."""
        moved_at, last = time.monotonic(), Standing(rows=-1)
        while (standing := self._store.standing(wanted.id)).state not in ENDED:
            if (standing.state, standing.rows, standing.chunks) != _progress(last):
                moved_at, last = time.monotonic(), standing
            if time.monotonic() - moved_at > PATIENCE_S:
                raise PipelineError(
                    f"the refresh of {wanted.table} does not move",
                    detail=f"It has been {standing.state} for {PATIENCE_S:.0f} s.",
                    hint="Run: pgtide refresh --list",
                )
            readiness.capture()
            if self.stop.wait(POLL_S):
                raise Interrupted("the repair was stopped; the refresh goes on")
        if standing.state != "done" or standing.until is None:
            raise PipelineError(
                f"the refresh of {wanted.table} was {standing.state}",
                detail=standing.message,
                hint="Run: pgtide refresh --list",
            )
        return standing.until


def _progress(standing: Standing) -> tuple[object, ...]:
    return standing.state, standing.rows, standing.chunks
