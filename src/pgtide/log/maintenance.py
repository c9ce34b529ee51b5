"""Keeping a log cheap for years: when to checkpoint, compact, drop and clean up.

Appending, opening and following cost time in proportion to the commits since the last
checkpoint and to the number of data files; ``Maintenance`` keeps both small. It has its own
handle of the table, so that it can run in a thread beside the writer or in another process:
its commits never conflict with appends, and two of its kind cannot do the same work twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgtide.errors import LogUnavailable
from pgtide.log.compaction import compact
from pgtide.log.readers import list_readers
from pgtide.log.retention import clean, oldest_day, retain, sweep
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import open_table, read_snapshot
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position

CHECKPOINT_COMMITS = 20
COMPACT_SECONDS = 1.0  # between looks at the files
SETTLED_SECONDS = 1.0  # files that are younger stay as they are
CLEAN_COMMITS = 20
RETAIN_SECONDS = 300.0
SWEEP_SECONDS = 86_400.0
_RUNS_AT_ONCE = 4  # compactions in one go, so that a checkpoint is never long overdue


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round of maintenance did."""

    checkpoint: int | None = None  # the version it was made at
    files_merged: int = 0
    files_dropped: int = 0
    versions_cleaned: int = 0
    orphans_removed: int = 0


def checkpoint(changes: Storage, table: DeltaTable) -> int:
    """Write a checkpoint of the handle's version and make it durable; the version."""
    version = table.version()
    try:
        table.create_checkpoint()
    except (DeltaError, OSError) as exc:
        raise LogUnavailable(
            "the log's checkpoint was not written", detail=str(exc).splitlines()[0]
        ) from exc
    changes.sync(f"_delta_log/{version:020d}.checkpoint.parquet")
    changes.sync("_delta_log/_last_checkpoint")
    return version


class Maintenance:
    """Does what is due, when it is due.

    ``retention`` is in seconds, None keeps everything. ``in_use`` names data files that the
    writer has written and not yet committed.
    """

    def __init__(
        self,
        path: str,
        storage: dict[str, str] | None,
        retention: float | None,
        *,
        in_use: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = Storage(path, storage)
        self._changes = self._log.child(CHANGES)
        self._retention = retention
        self._in_use = in_use
        self._clock = clock
        self._table = open_table(self._changes)
        self._checkpointed = self._cleaned = -1
        self._looked_at = -1
        now = clock()
        self._next_look = now + COMPACT_SECONDS
        self._next_retain = now + COMPACT_SECONDS
        self._next_sweep = now + RETAIN_SECONDS
        self._settled = Position(Lsn(0))
        self._mark = (now, read_snapshot(self._table).end)

    def due(self, version: int, *, busy: bool = False) -> bool:
        """Whether a round would do something, given the newest Delta version: cheap to ask.

        A ``busy`` writer has a backlog, and files of the right size by itself: compaction and
        retention can wait until it has caught up.
        """
        now = self._clock()
        if version - self._checkpointed >= CHECKPOINT_COMMITS:
            return True
        return not busy and (
            version - self._cleaned >= CLEAN_COMMITS
            or (now >= self._next_look and version != self._looked_at)
            or now >= self._next_retain
        )

    def run_once(self) -> Outcome:
        """One round of whatever is due now."""
        self._refresh()
        now = self._clock()
        merged = dropped = cleaned = swept = 0
        made = None
        if now >= self._next_look:
            merged = self._compact(now)
        retaining = now >= self._next_retain
        if retaining:
            dropped = self._retain()
            self._next_retain = self._clock() + RETAIN_SECONDS
        if self._table.version() - self._checkpointed >= CHECKPOINT_COMMITS:
            made = self._checkpoint()
        if retaining or self._table.version() - self._cleaned >= CLEAN_COMMITS:
            cleaned = self._clean()
        if now >= self._next_sweep:
            swept = sweep(self._changes, in_use=self._in_use())
            self._next_sweep = self._clock() + SWEEP_SECONDS
        return Outcome(made, merged, dropped, cleaned, swept)

    def run_fully(self) -> Outcome:
        """Everything that can be done now, whatever is due: ``pgtide log compact``."""
        self._refresh()
        dropped = self._retain()
        end = read_snapshot(self._table).end
        merged = 0
        while files := compact(self._changes, self._table, end, everything=True):
            merged += files
        made = self._checkpoint()
        return Outcome(
            made, merged, dropped, self._clean(), sweep(self._changes, in_use=self._in_use())
        )

    def _refresh(self) -> None:
        # A new handle, not an updated one: Delta reads some facts from the Delta log when they
        # are asked for, back to the checkpoint of the opening, and that may be cleaned by now.
        self._table = open_table(self._changes)

    def _compact(self, now: float) -> int:
        marked, end = self._mark
        if now - marked >= SETTLED_SECONDS:
            # Files up to what was the end a while ago are merged, the tail stays as it is.
            self._settled = end
            self._mark = (now, read_snapshot(self._table).end)
        merged = 0
        for _ in range(_RUNS_AT_ONCE):
            files = compact(self._changes, self._table, self._settled)
            if not files:
                break
            merged += files
        self._next_look = self._clock() + COMPACT_SECONDS
        self._looked_at = self._table.version()
        return merged

    def _retain(self) -> int:
        if self._retention is None:
            return 0
        oldest = oldest_day(self._retention, datetime.now(UTC))
        return retain(self._changes, self._table, list_readers(self._log), oldest)

    def _checkpoint(self) -> int:
        self._checkpointed = checkpoint(self._changes, self._table)
        return self._checkpointed

    def _clean(self) -> int:
        versions = clean(self._changes, list_readers(self._log))
        self._cleaned = self._table.version()
        return versions
