"""Appending to the change log: data files, then one Delta commit that makes them true.

The contract behind exactly once (invariants I1, I2, I3, I5):

* a part is on disk, fsynced, before a commit names it; a commit is fsynced
  before ``commit`` returns;
* each commit carries the Delta ``txn`` action (``pgtide/<slot>``, V), so rows and
  progress become true in the same instant;
* a commit succeeds only if the newest ``txn`` of the slot is the one that this writer made or
  found when it was opened. Maintenance's commits in between do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from pgtide.log.datafile import (
    PARQUET_OPTIONS,
    SMALL_BYTES,
    SMALL_PARQUET_OPTIONS,
    STATISTICS,
)
from pgtide.log.delta_commits import DeltaCommits
from pgtide.log.local_commits import LocalCommits
from pgtide.log.parts import ROW_GROUP_BYTES, ROW_GROUP_ROWS, PartFile
from pgtide.log.schema import CHANGES, TABLE_SCHEMA
from pgtide.log.shapes import create_shapes
from pgtide.log.sizes import cut, row_sizes
from pgtide.log.source import FORMAT, app_id, timeline_app_id
from pgtide.log.storage import Storage, sync_directory
from pgtide.log.table import commit_path, create_refused, open_table, read_transaction
from pgtide.position import Lsn
from pgtide.shape import Shape

_EPOCH_DAY = date(1970, 1, 1)
_DAY_MICROS = 86_400_000_000


def create_log(
    path: str,
    storage: dict[str, str] | None = None,
    *,
    system_identifier: str,
    database: str,
    slot: str,
    start: Lsn,
    timeline: int,
    baseline: Sequence[Shape] = (),
) -> None:
    """Make an empty log whose position is ``start``; a log that exists is left alone."""
    log = Storage(path, storage)
    changes = log.child(CHANGES)
    try:
        if DeltaTable.is_deltatable(changes.root, changes.options):
            return
        if log.local is not None:
            missing = [each for each in (log.local, *log.local.parents) if not each.exists()]
            log.local.mkdir(parents=True, exist_ok=True)
            for each in missing:
                sync_directory(each.parent)
        create_shapes(log, baseline)
        _create_changes(
            changes,
            {
                "pgtide.format": FORMAT,
                "pgtide.system_identifier": system_identifier,
                "pgtide.database": database,
                "pgtide.slot": slot,
            },
            Transaction(app_id(slot), int(start)),
            Transaction(timeline_app_id(slot), timeline),
        )
        changes.sync(commit_path(0))
        if log.local is not None:
            for directory in (changes.root, log.root, log.local.parent):
                sync_directory(Path(directory))
    except (DeltaError, OSError) as exc:
        raise create_refused(exc, changes) from exc


def _create_changes(
    changes: Storage, properties: dict[str, str], *transactions: Transaction
) -> None:
    DeltaTable.create(
        changes.root,
        TABLE_SCHEMA,
        partition_by=["day"],
        description="pgtide change log, see docs/LOG_FORMAT.md",
        configuration={
            **properties,
            "delta.logRetentionDuration": "interval 1 hours",
            # Nothing of ours reads tombstones; each costs whoever opens the log 3 µs.
            "delta.deletedFileRetentionDuration": "interval 10 minutes",
            "delta.enableExpiredLogCleanup": "false",
            "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
        },
        storage_options=changes.options,
        raise_if_key_not_exists=False,
        commit_properties=CommitProperties(app_transactions=list(transactions)),
    )


class LogWriter:
    """The one appender of a log."""

    def __init__(self, path: str, storage: dict[str, str] | None, slot: str) -> None:
        self.storage = Storage(path, storage).child(CHANGES)
        table = open_table(self.storage)
        # The log's facts about its source, and the source's timeline when V was written.
        self.properties: dict[str, str] = dict(table.metadata().configuration)
        self.timeline = int(read_transaction(table, timeline_app_id(slot)))
        commits = LocalCommits if self.storage.local is not None else DeltaCommits
        self._commits: LocalCommits | DeltaCommits = commits(self.storage, slot, table)
        self.uncommitted: set[str] = set()  # files written that no commit names yet

    @property
    def position(self) -> Lsn:
        """V: whatever ends at or before it is in the log."""
        return self._commits.position

    @property
    def version(self) -> int:
        """The Delta version of the newest commit this writer knows."""
        return self._commits.version

    def write_part(self, rows: pa.Table) -> list[AddAction]:
        """Write rows (the log's columns, without ``day``) as durable, not yet visible files."""
        return [self._write_file(day, part) for day, part in _by_day(rows)]

    def commit(
        self,
        parts: Sequence[AddAction],
        position: Lsn,
        timeline: int,
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Make parts and the new position true together, durably.

        ``also``: further application ids that become true with them, and their versions.
        """
        self._commits.append(parts, position, timeline, also)
        self.timeline = timeline
        self.uncommitted.difference_update(part.path for part in parts)

    def reopen(self) -> None:
        """Look at the log anew; the newest position must be our own."""
        self._commits.reopen()

    def renew(self) -> None:
        """Keep commits cheap after a checkpoint; for a thread beside the one that commits."""
        self._commits.renew()

    def _write_file(self, day: date, rows: pa.Table) -> AddAction:
        options = SMALL_PARQUET_OPTIONS if rows.nbytes < SMALL_BYTES else PARQUET_OPTIONS
        file = PartFile(self.storage, day, options)
        for begin, end in _row_groups(rows):
            file.add(rows.slice(begin, end - begin))
        self.uncommitted.add(file.path)
        return file.save()


def _row_groups(rows: pa.Table) -> Iterator[tuple[int, int]]:
    if rows.num_rows <= ROW_GROUP_ROWS and rows.nbytes <= ROW_GROUP_BYTES:
        return iter([(0, rows.num_rows)])
    return cut(row_sizes(rows), ROW_GROUP_ROWS, ROW_GROUP_BYTES)


def _by_day(rows: pa.Table) -> list[tuple[date, pa.Table]]:
    """Split rows by commit date; what has no commit time goes with the rows around it."""
    if rows.num_rows == 0:
        return []
    # Integer division of microseconds: date32 casts of timestamps are far slower.
    micros = rows.column("committed_at").cast(pa.int64())
    bounds: Any = pc.min_max(micros).as_py()
    if bounds["min"] is None:
        return [(datetime.now(UTC).date(), rows)]
    first, last = bounds["min"] // _DAY_MICROS, bounds["max"] // _DAY_MICROS
    if first == last:
        return [(_EPOCH_DAY + timedelta(days=first), rows)]
    known = pc.fill_null_backward(pc.fill_null_forward(pc.divide(micros, _DAY_MICROS)))
    # Clocks may go back, positions may not: no file has rows that come before another's of an
    # earlier day, whatever batches a stream makes of the files.
    days = np.maximum.accumulate(known.to_numpy())
    return [
        (_EPOCH_DAY + timedelta(days=int(day)), rows.filter(pa.array(days == day)))
        for day in np.unique(days)
    ]
