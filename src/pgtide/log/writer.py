"""Appending to the change log: data files, then one Delta commit that makes them true.

The contract behind exactly once (invariants I1, I2, I3, I5):

* a part is on disk, fsynced, before a commit names it; a commit is fsynced
  before ``commit`` returns;
* each commit carries the Delta ``txn`` action (``pgtide/<slot>``, V), so rows and
  progress become true in the same instant;
* a writer whose handle has not seen the newest ``txn`` of its slot is rejected
  by Delta. The handle is therefore refreshed only together with the check that
  the newest ``txn`` is our own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from pgtide.errors import LogFenced, LogMissing, LogUnavailable
from pgtide.log.schema import CHANGES, TABLE_SCHEMA
from pgtide.log.shapes import create_shapes
from pgtide.log.storage import Storage, sync_directory, unavailable
from pgtide.position import Lsn
from pgtide.shape import Shape

STATISTICS = ("lsn", "seq", "schema", "table", "op")
_PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    # Not the numbers of transactions: too many, and zstd does better without.
    "use_dictionary": ["op", "schema", "table", "shape"],
    "write_statistics": list(STATISTICS),
    "store_schema": False,  # the dictionaries are ours; readers get plain strings
    "row_group_size": 131_072,
}
_EPOCH_DAY = date(1970, 1, 1)

# Checkpoints and clean-up are maintenance's, off the commit path.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def app_id(slot: str) -> str:
    """The Delta application id whose version is the log's position V."""
    return f"pgtide/{slot}"


def timeline_app_id(slot: str) -> str:
    """The application id whose version is the source's timeline at V."""
    return f"pgtide/{slot}/timeline"


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
    if DeltaTable.is_deltatable(changes.root, changes.options):
        return
    if log.local is not None:
        try:
            log.local.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unavailable(exc) from exc
    create_shapes(log, baseline)
    DeltaTable.create(
        changes.root,
        TABLE_SCHEMA,
        partition_by=["day"],
        description="pgtide change log, see docs/LOG_FORMAT.md",
        configuration={
            "pgtide.format": "1",
            "pgtide.system_identifier": system_identifier,
            "pgtide.database": database,
            "pgtide.slot": slot,
            "delta.logRetentionDuration": "interval 1 hours",
            "delta.deletedFileRetentionDuration": "interval 1 hours",
            "delta.enableExpiredLogCleanup": "false",
            "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
        },
        storage_options=changes.options,
        raise_if_key_not_exists=False,
        commit_properties=CommitProperties(
            app_transactions=[
                Transaction(app_id(slot), int(start)),
                Transaction(timeline_app_id(slot), timeline),
            ]
        ),
    )
    changes.sync("_delta_log/00000000000000000000.json")
    if log.local is not None:
        for directory in (changes.root, log.root, log.local.parent):
            sync_directory(Path(directory))


class LogWriter:
    """The one appender of a log."""

    def __init__(self, path: str, storage: dict[str, str] | None, slot: str) -> None:
        self._slot = slot
        self.storage = Storage(path, storage).child(CHANGES)
        self._table = self._open()
        # Kept here: asking the handle reads files of the log.
        self._position = self._read_position()
        self.uncommitted: set[str] = set()  # files written that no commit names yet

    @property
    def position(self) -> Lsn:
        """V: whatever ends at or before it is in the log."""
        return self._position

    @property
    def timeline(self) -> int:
        """The source's timeline when V was written."""
        return self._table.transaction_version(timeline_app_id(self._slot)) or 0

    @property
    def version(self) -> int:
        """The Delta version of the newest commit this writer knows."""
        return self._table.version()

    @property
    def properties(self) -> dict[str, str]:
        """The log's facts about its source."""
        return dict(self._table.metadata().configuration)

    def write_part(self, rows: pa.Table) -> list[AddAction]:
        """Write rows (the log's columns, without ``day``) as durable, not yet visible files."""
        return [self._write_file(day, part) for day, part in _by_day(rows)]

    def commit(self, parts: Sequence[AddAction], position: Lsn, timeline: int) -> None:
        """Make parts and the new position true together, durably."""
        before = self._table.version()
        self.storage.require("_delta_log")
        try:
            self._table.create_write_transaction(
                list(parts),
                "append",
                TABLE_SCHEMA,
                ["day"],
                commit_properties=CommitProperties(
                    app_transactions=[
                        Transaction(app_id(self._slot), int(position)),
                        Transaction(timeline_app_id(self._slot), timeline),
                    ]
                ),
                post_commithook_properties=_NO_HOOKS,
            )
            self._table.update_incremental()
        except CommitFailedError as exc:
            raise self._commit_error(exc) from exc
        except (DeltaError, OSError) as exc:
            raise LogUnavailable(
                "the log did not take a commit",
                detail=str(exc).splitlines()[0],
                hint="Nothing was confirmed; capture opens the log again and goes on by itself.",
            ) from exc
        self._check_unfenced(position)
        for version in range(before + 1, self._table.version() + 1):
            self.storage.sync(f"_delta_log/{version:020d}.json")
        self.uncommitted.difference_update(part.path for part in parts)

    def reopen(self) -> None:
        """Take a fresh handle, which is cheap to commit with after a checkpoint."""
        self._table = self._open()
        self._check_unfenced(self._position)

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(self.storage.root, storage_options=self.storage.options)
        except TableNotFoundError:
            raise LogMissing(
                "there is no change log here",
                detail=f"{self.storage.root} is not a Delta table.",
                hint="Run: pgtide init",
            ) from None
        except (DeltaError, OSError) as exc:
            raise LogUnavailable(
                "the log cannot be opened", detail=str(exc).splitlines()[0]
            ) from exc

    def _check_unfenced(self, position: Lsn) -> None:
        self._position = self._read_position()
        if self._position != position:
            raise self._fenced()

    def _read_position(self) -> Lsn:
        try:
            return Lsn(self._table.transaction_version(app_id(self._slot)) or 0)
        except (DeltaError, OSError) as exc:
            raise LogUnavailable("the log cannot be read", detail=str(exc).splitlines()[0]) from exc

    def _commit_error(self, exc: CommitFailedError) -> Exception:
        if "Concurrent transaction" in str(exc):
            return self._fenced()
        return LogUnavailable("the log did not take a commit", detail=str(exc).splitlines()[0])

    def _fenced(self) -> LogFenced:
        return LogFenced(
            "another capture writes this log",
            detail=f"The log at {self.storage.root} was advanced by someone else.",
            hint="Run only one: pgtide status shows the process; stop the other, then start again.",
        )

    def _write_file(self, day: date, rows: pa.Table) -> AddAction:
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows,
            sink,
            **_PARQUET_OPTIONS,
        )
        data = sink.getvalue()
        path = f"day={day.isoformat()}/{uuid.uuid4()}.parquet"
        self.uncommitted.add(path)
        self.storage.write(path, memoryview(data))
        return AddAction(
            path,
            data.size,
            {"day": day.isoformat()},
            int(time.time() * 1000),
            True,
            file_statistics(rows),
        )


def file_statistics(rows: pa.Table) -> str:
    """The add-action's statistics: what data skipping and ordered reading rely on."""
    minimum, maximum, nulls = {}, {}, {}
    for name in STATISTICS:
        column: Any = rows.column(name)
        if pa.types.is_dictionary(column.type):
            column = pc.unique(column).cast(pa.string())
        nulls[name] = rows.column(name).null_count
        bounds: Any = pc.min_max(column).as_py()
        if bounds["min"] is not None:
            minimum[name], maximum[name] = bounds["min"], bounds["max"]
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": minimum,
            "maxValues": maximum,
            "nullCount": nulls,
        }
    )


def _by_day(rows: pa.Table) -> list[tuple[date, pa.Table]]:
    """Split rows by commit date; what has no commit time goes with the rows around it."""
    if rows.num_rows == 0:
        return []
    # Integer division of microseconds: date32 casts of timestamps are far slower.
    micros = rows.column("committed_at").cast(pa.int64())
    days = pc.fill_null_backward(
        pc.fill_null_forward(pc.divide(micros, 86_400_000_000))
    ).combine_chunks()
    bounds: Any = pc.min_max(days).as_py()
    if bounds["min"] is None:
        return [(datetime.now(UTC).date(), rows)]
    if bounds["min"] == bounds["max"]:
        return [(_EPOCH_DAY + timedelta(days=bounds["min"]), rows)]
    return [
        (_EPOCH_DAY + timedelta(days=day), rows.filter(pc.equal(days, day)))
        for day in sorted(pc.unique(days).to_pylist())
    ]
