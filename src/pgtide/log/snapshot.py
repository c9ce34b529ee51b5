"""One version of the log: its data files with their bounds, and what it knows about itself.

Everything here comes from the Delta log alone; no data file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgtide.errors import LogError, LogUnavailable
from pgtide.log.source import (
    LogSource,
    app_id,
    complete_from_app_id,
    history_app_id,
    maintenance_app_id,
)
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.position import Lsn, Position

_TRIES = 3  # to open a version that clean-up does not overtake
_BOUNDED = ("lsn", "seq", "schema", "table", "op")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the log. All of its rows lie in ``low`` … ``high``, both inclusive."""

    path: str
    size: int
    day: date
    logged_at_ms: int  # of its newest row, Unix time by capture's clock
    rows: int
    low: Position
    high: Position
    table: tuple[str, str] | None  # schema and table, when no row is of another one
    op: str | None = None  # likewise


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of the ``changes`` table."""

    version: int
    source: LogSource
    position: Lsn  # V: whatever ends at or before it is in the log
    complete_from: Lsn  # retention dropped rows before it; 0 when it never did
    maintenance: int  # how many maintenance commits there were
    files: tuple[DataFile, ...]
    history: Lsn = Lsn(0)  # where the tables' rows were read that the log has; 0: they never were

    @property
    def empty(self) -> bool:
        """Whether no event was ever logged."""
        return not self.files and not self.complete_from

    @property
    def end(self) -> Position:
        """The position after the last row."""
        if not self.files:
            return Position(self.complete_from)
        last = max(file.high for file in self.files)
        return max(Position(last.lsn, last.seq + 1), Position(self.complete_from))


def read_snapshot(table: DeltaTable) -> Snapshot:
    """What the table's handle sees at its present version."""
    try:
        return _read_snapshot(table)
    except (DeltaError, OSError) as exc:
        # The handle reads from the Delta log as it is asked; clean-up may have been there first.
        raise LogUnavailable(
            "the log changed while it was opened",
            detail=str(exc).splitlines()[0],
            hint="Try again; if it persists, the log is damaged: restore it from a backup.",
        ) from exc


def newest_snapshot(changes: Storage) -> Snapshot:
    """The newest version, opened anew."""
    for _ in range(_TRIES - 1):
        with suppress(LogUnavailable):
            return read_snapshot(open_table(changes))
    return read_snapshot(open_table(changes))


def _read_snapshot(table: DeltaTable) -> Snapshot:
    source = LogSource.of(table.metadata().configuration, table.table_uri)
    snapshot = table.transaction_version(f"{app_id(source.slot)}/snapshot") or 0
    return Snapshot(
        version=table.version(),
        source=replace(source, snapshot=snapshot),
        position=Lsn(table.transaction_version(app_id(source.slot)) or 0),
        complete_from=Lsn(table.transaction_version(complete_from_app_id(source.slot)) or 0),
        maintenance=table.transaction_version(maintenance_app_id(source.slot)) or 0,
        files=tuple(_active_files(table)),
        history=Lsn(table.transaction_version(history_app_id(source.slot)) or 0),
    )


def added_file(action: dict[str, Any]) -> DataFile:
    """The file of an ``add`` action as a commit of the Delta log spells it."""
    stats = json.loads(action.get("stats") or "{}")
    low, high = stats.get("minValues", {}), stats.get("maxValues", {})
    return _data_file(
        action["path"],
        action["size"],
        date.fromisoformat(action["partitionValues"]["day"]),
        action["modificationTime"],
        stats.get("numRecords"),
        [low.get(name) for name in _BOUNDED],
        [high.get(name) for name in _BOUNDED],
    )


def _active_files(table: DeltaTable) -> Iterator[DataFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return
    names = ["path", "size_bytes", "partition.day", "modification_time", "num_records"]
    names += [f"{end}.{column}" for end in ("min", "max") for column in _BOUNDED]
    missing = pa.nulls(actions.num_rows)
    columns = [actions[name] if name in actions.column_names else missing for name in names]
    for path, size, day, at, rows, *bounds in zip(*(c.to_pylist() for c in columns), strict=True):
        each = len(_BOUNDED)
        yield _data_file(path, size, day, at, rows, bounds[:each], bounds[each:])


def _data_file(
    path: str,
    size: int,
    day: date,
    logged_at_ms: int,
    rows: int | None,
    low: list[Any],
    high: list[Any],
) -> DataFile:
    if rows is None or None in (*low[:2], *high[:2]):
        raise LogError(
            "a data file of the log has no statistics",
            detail=f"{path} does not say which positions it holds; pgtide did not write it.",
            hint="Compact logs with pgtide log compact only, and restore this one from a backup.",
        )
    return DataFile(
        path=unquote(path),
        size=size,
        day=day,
        logged_at_ms=logged_at_ms,
        rows=rows,
        low=Position(Lsn(low[0]), low[1]),
        high=Position(Lsn(high[0]), high[1]),
        table=(low[2], low[3]) if None not in low[:4] and low[2:4] == high[2:4] else None,
        op=low[4] if low[4] == high[4] else None,
    )
