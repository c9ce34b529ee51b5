"""Opening a change log and reading it in order, without Spark.

    for event in Log("tide/log").events(follow=True):
        print(event.position, event.op, event.table, event.after)

A read starts from one version of the log and, when it follows, goes on commit by commit.
If clean-up overtakes a slow reader it goes on from a newer version at the same position;
if retention overtook it, it stops with ``LogGap``: never a silent gap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgtide.errors import LogError, LogGap
from pgtide.log.event import Event, read_events
from pgtide.log.files import file_missing
from pgtide.log.follow import Cleaned, CommitTail
from pgtide.log.freshness import known_until
from pgtide.log.order import read_ordered
from pgtide.log.schema import CHANGES, SHAPES, TABLE_SCHEMA
from pgtide.log.shapes import open_shapes, read_shapes
from pgtide.log.snapshot import DataFile, Snapshot, newest_snapshot
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.log.summary import summarise
from pgtide.position import Lsn, Position
from pgtide.shape import Shape

if TYPE_CHECKING:
    from pgtide.config import TablePatterns


class Log:
    """A change log at a local path or an object store address."""

    def __init__(self, path: str | os.PathLike[str], storage: dict[str, str] | None = None) -> None:
        self._root = Storage(os.fspath(path), storage)
        self.changes = self._root.child(CHANGES)
        self._shapes: dict[int, Shape] = {}
        self.source: LogSource = self.snapshot().source

    def snapshot(self) -> Snapshot:
        """The newest version of the log."""
        return newest_snapshot(self.changes)

    @property
    def position(self) -> Lsn:
        """Whatever the source committed up to here is in the log."""
        return self.snapshot().position

    @property
    def end(self) -> Position:
        """The position after the last row, where news will begin."""
        return self.snapshot().end

    def known_until(self) -> datetime | None:
        """The moment up to which the log holds what the source did, if that can be told."""
        return known_until(self.changes, self.snapshot())

    def shapes(self) -> dict[int, Shape]:
        """Every shape that rows of the log refer to, by id."""
        self._shapes = {shape.id: shape for shape in read_shapes(open_shapes(self._root))}
        return dict(self._shapes)

    def summary(self) -> dict[str, Any]:
        """Positions, size, tables and shapes, as ``pgtide log show`` prints them."""
        return summarise(self.changes, self.snapshot(), self.shapes())

    def events(
        self,
        start: Position | None = None,
        *,
        tables: TablePatterns | None = None,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Events in order, at or after ``start``, by default from the oldest that is kept.

        ``follow`` waits for more, until ``stop`` (asked between polls) says so.
        """
        for batch in self.batches(start, tables=tables, follow=follow, stop=stop):
            yield from self.decode(batch)

    def decode(self, batch: pa.RecordBatch) -> Iterator[Event]:
        """The rows of one of this log's batches as events."""
        ids = {shape for shape in batch.column("shape").unique().to_pylist() if shape is not None}
        if not ids <= self._shapes.keys():
            missing = ids - self.shapes().keys()
            if missing:
                raise LogError(
                    "the log has rows of an unknown shape",
                    detail=f"Shapes {sorted(missing)} are not in {self._root.root}/{SHAPES}.",
                    hint="The log is damaged: restore it from a backup or start a new one.",
                )
        return read_events(batch, self._shapes)

    def batches(
        self,
        start: Position | None = None,
        *,
        tables: TablePatterns | None = None,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches with the log's columns (``schema.TABLE_SCHEMA``)."""
        reading = _Reading(self, self.changes, start, tables)
        yield from reading.newest_version()
        while follow and not (stop is not None and stop()):
            yield from reading.next_commit()


class _Reading:
    """One pass over the log: how far it has come, and how it goes on."""

    def __init__(
        self, log: Log, changes: Storage, start: Position | None, tables: TablePatterns | None
    ) -> None:
        self._log = log
        self.changes = changes
        self._next = start  # everything before it was delivered, or not asked for
        self._tables = tables
        self._tail = CommitTail(changes, -1)

    def newest_version(self) -> Iterator[pa.RecordBatch]:
        """Whatever the newest version holds from here on."""
        while True:
            snapshot = self._log.snapshot()
            before = self._next = self._checked(snapshot)
            try:
                yield from self._deliver(snapshot.files)
                break
            except FileNotFoundError as exc:
                # A file may go an hour after compaction replaced it: take the replacement.
                if self._next == before and self._log.snapshot().version == snapshot.version:
                    raise file_missing(exc) from exc
        self._next = max(self._next, snapshot.end)
        self._tail = CommitTail(self.changes, snapshot.version)

    def next_commit(self) -> Iterator[pa.RecordBatch]:
        """What the next commit added; waits a moment when there is none yet."""
        files = self._tail.next_files()
        if files is None:
            time.sleep(self._tail.pause)
        elif isinstance(files, Cleaned):
            yield from self.newest_version()
        elif files:
            try:
                yield from self._deliver(files)
            except FileNotFoundError:
                yield from self.newest_version()
            else:
                last = max(file.high for file in files)
                self._next = max(self._next or Position(Lsn(0)), Position(last.lsn, last.seq + 1))

    def _deliver(self, files: tuple[DataFile, ...] | list[DataFile]) -> Iterator[pa.RecordBatch]:
        for batch in read_ordered(self.changes, files, self._next, self._tables):
            yield batch.cast(TABLE_SCHEMA) if batch.schema != TABLE_SCHEMA else batch
            last = batch.num_rows - 1
            lsn, seq = batch.column("lsn")[last].as_py(), batch.column("seq")[last].as_py()
            self._next = Position(Lsn(lsn), seq + 1)

    def _checked(self, snapshot: Snapshot) -> Position:
        oldest = Position(snapshot.complete_from)
        if self._next is None:
            return oldest
        if self._next < oldest:
            raise LogGap(
                "the log no longer holds that position",
                detail=f"{self._next} was asked for, retention has kept {oldest} and later.",
                hint="Read --from beginning, which is the oldest that is kept; "
                "log.retention says how long rows stay.",
            )
        return self._next
