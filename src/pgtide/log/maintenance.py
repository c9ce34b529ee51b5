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

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgtide.errors import LogUnavailable
from pgtide.log.compaction import compact
from pgtide.log.readers import list_readers
from pgtide.log.retention import clean, retain, sweep
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import Snapshot, read_snapshot
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.position import Position

# Commits from round to round. What is not checkpointed costs whoever opens the log 0.1 ms a
# commit, measured; delta-rs, which appends on an object store, pays that at each of its commits.
ROUND_COMMITS = 50
ROUND_COMMITS_REMOTE = 20
SETTLED_SECONDS = 1.0  # files that are younger stay as they are
FIRST_RETAIN_SECONDS = 1.0  # after the start: a capture may be short
RETAIN_SECONDS = 300.0
SWEEP_SECONDS = 86_400.0
_RUNS_AT_ONCE = 4  # compactions in one round, so that a checkpoint is never long overdue


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
    writer has written and not yet committed: only who can tell may remove what no commit names.
    """

    def __init__(
        self,
        path: str,
        storage: dict[str, str] | None,
        retention: float | None,
        *,
        in_use: Callable[[], Collection[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = Storage(path, storage)
        self._changes = self._log.child(CHANGES)
        self._retention = retention
        self._in_use = in_use
        self._clock = clock
        self._commits = ROUND_COMMITS if self._changes.local is not None else ROUND_COMMITS_REMOTE
        self._checkpointed = -1
        self._memory: dict[str, int] = {}  # what `compact` has found out about files
        now = clock()
        self._next_retain = now + FIRST_RETAIN_SECONDS
        self._next_sweep = now + RETAIN_SECONDS

    def due(self, version: int, *, busy: bool = False) -> bool:
        """Whether there is something to do, given the newest Delta version: cheap to ask."""
        if version - self._checkpointed >= self._commits:
            return True
        return not busy and self._clock() >= self._next_retain

    def run_once(self, *, busy: bool = False) -> Outcome:
        """One round: checkpoint, merge, drop and clean up.

        A ``busy`` writer has a backlog, and files of the right size by itself: it is spared the
        rest until it has caught up.
        """
        now = self._clock()
        merged = dropped = swept = 0
        # Before everything else: delta-rs reads all that is newer than the checkpoint of the
        # opening whenever it is asked for something.
        made = self._checkpoint()
        if not busy:
            # A new handle, not an updated one: what that reads may be cleaned by now.
            table = open_table(self._changes)
            merged = self._merge(table)
            if now >= self._next_retain:
                dropped = self._retain(table)
                self._next_retain = now + RETAIN_SECONDS
        cleaned = clean(self._changes, list_readers(self._log))
        if not busy and self._in_use is not None and now >= self._next_sweep:
            swept = sweep(self._changes, in_use=self._in_use())
            self._next_sweep = now + SWEEP_SECONDS
        return Outcome(made, merged, dropped, cleaned, swept)

    def run_fully(self) -> Outcome:
        """Everything that any process may do at any time: ``pgtide log compact``.

        That is all but removing what no commit names: it may be a part of a transaction that
        some capture has been receiving for days.
        """
        table = open_table(self._changes)
        dropped = self._retain(table)
        end = read_snapshot(table).end
        merged = 0
        while files := compact(self._changes, table, end, everything=True, memory=self._memory):
            merged += files
        made = checkpoint(self._changes, table)
        return Outcome(made, merged, dropped, clean(self._changes, list_readers(self._log)))

    def _checkpoint(self) -> int | None:
        table = open_table(self._changes)
        if table.version() <= self._checkpointed:
            return None
        self._checkpointed = checkpoint(self._changes, table)
        return self._checkpointed

    def _merge(self, table: DeltaTable) -> int:
        settled = _settled(read_snapshot(table), time.time())
        merged = 0
        for _ in range(_RUNS_AT_ONCE):
            files = compact(self._changes, table, settled, memory=self._memory)
            if not files:
                break
            merged += files
        return merged

    def _retain(self, table: DeltaTable) -> int:
        if self._retention is None:
            return 0
        return retain(self._changes, table, list_readers(self._log), self._retention)


def _settled(snapshot: Snapshot, now: float) -> Position:
    """The position up to which files are no longer new."""
    young = [
        file.low for file in snapshot.files if 0 <= now - file.logged_at_ms / 1000 < SETTLED_SECONDS
    ]
    return min(young, default=snapshot.end)
