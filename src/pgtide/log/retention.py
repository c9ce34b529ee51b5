"""Retention and clean-up: what leaves the log, and in which order, so that nobody is surprised.

``retain`` drops old days from the log and records from where it is complete. ``clean``
later removes what no version that anybody may read refers to: first the data files that an
expired commit removed, then the commit file itself, so that a crash in between loses track
of nothing. Neither passes the slowest registered reader. Delta's own vacuum is not used: it
forgets files whose tombstones expired, and knows nothing of readers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime, timedelta
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction
from deltalake.transaction import RemoveAction

from pgtide.log.fence import commit_maintenance
from pgtide.log.files import delete, open_input, walk
from pgtide.log.follow import commit_path
from pgtide.log.readers import Reader, slowest
from pgtide.log.snapshot import DataFile, Snapshot, open_table, read_snapshot
from pgtide.log.source import complete_from_app_id
from pgtide.log.storage import Storage
from pgtide.position import Lsn

KEEP_VERSIONS = 3600.0  # seconds that a replaced version, and its files, can still be read
KEEP_ORPHANS = 86_400.0  # seconds until a file that no commit names counts as left behind

_DELTA_LOG = "_delta_log"


def retain(changes: Storage, table: DeltaTable, readers: Iterable[Reader], oldest: date) -> int:
    """Drop the days before ``oldest`` as far as the slowest reader is done with them.

    Returns how many files were dropped. Commit times are not in exact order of positions, so
    a file of an old day stays while rows of kept days lie before its end: what remains is
    always the whole log from one position on.
    """
    snapshot = read_snapshot(table)
    dropped = _expired(snapshot, readers, oldest)
    if not dropped:
        return 0
    complete_from = Lsn(max(file.high.lsn for file in dropped) + 1)
    now = int(time.time() * 1000)
    removed = [
        RemoveAction(file.path, False, now, file.size, {"day": file.day.isoformat()})
        for file in dropped
    ]
    kept = Transaction(complete_from_app_id(snapshot.source.slot), int(complete_from))
    return len(dropped) if commit_maintenance(changes, table, snapshot, removed, kept) else 0


def _expired(snapshot: Snapshot, readers: Iterable[Reader], oldest: date) -> list[DataFile]:
    floors = [file.low.lsn for file in snapshot.files if file.day >= oldest]
    reached = slowest(readers)
    if reached is not None:
        floors.append(reached[1].lsn)
    floor = min(floors, default=None)
    return [
        file
        for file in snapshot.files
        if file.day < oldest and (floor is None or file.high.lsn < floor)
    ]


def oldest_day(retention: float, now: datetime) -> date:
    """The first day to keep: every row lives at least ``retention`` seconds."""
    return (now - timedelta(seconds=retention)).date()


def clean(
    changes: Storage,
    readers: Iterable[Reader],
    *,
    keep: float = KEEP_VERSIONS,
    now: float | None = None,
) -> int:
    """Remove expired versions and the data files that only they need; how many versions."""
    names = _versions(changes)
    limit = _first_kept(changes, names, readers, (time.time() if now is None else now) - keep)
    expired = sorted(version for version in names if version < limit)
    for version in expired:
        for path in _removed_by(changes, version):
            delete(changes, path)
        # The commit file last: while it is there, its work can be done again.
        for path, _ in sorted(names[version], key=lambda item: item[0].endswith(".json")):
            delete(changes, path)
    return len(expired)


def sweep(
    changes: Storage,
    *,
    keep: float = KEEP_ORPHANS,
    in_use: Collection[str] = (),
    now: float | None = None,
) -> int:
    """Remove data files that no kept version names: what a crash left behind; how many.

    ``in_use`` names files that were written and will be committed yet.
    """
    before = (time.time() if now is None else now) - keep
    # Listed first: a file that is committed in between is then found in the snapshot.
    found = [
        entry.path
        for entry in walk(changes, "")
        if not entry.path.startswith(f"{_DELTA_LOG}/") and entry.modified < before
    ]
    known = set(in_use) | {file.path for file in read_snapshot(open_table(changes)).files}
    for version in _versions(changes):
        known.update(_removed_by(changes, version))
    orphans = [path for path in found if path not in known]
    for path in orphans:
        delete(changes, path)
    return len(orphans)


def _versions(changes: Storage) -> dict[int, list[tuple[str, float]]]:
    """The files of the Delta log by version, each with the time it was written."""
    names: dict[int, list[tuple[str, float]]] = {}
    for entry in walk(changes, _DELTA_LOG):
        number = entry.path.removeprefix(f"{_DELTA_LOG}/").split(".", 1)[0]
        if len(number) == 20 and number.isdigit():
            names.setdefault(int(number), []).append((entry.path, entry.modified))
    return names


def _first_kept(
    changes: Storage,
    names: dict[int, list[tuple[str, float]]],
    readers: Iterable[Reader],
    before: float,
) -> int:
    """The checkpoint from which on everything stays, 0 when there is none old enough."""
    young = [
        version
        for version, files in names.items()
        if any(path.endswith(".json") and modified >= before for path, modified in files)
    ]
    limits = [min(young)] if young else [max(names, default=0)]
    reached = slowest(readers)
    if reached is not None:
        limits.append(reached[0])
    for version in sorted(names, reverse=True):
        parts = [path for path, _ in names[version] if ".checkpoint" in path]
        if parts and version <= min(limits) and all(_is_whole(changes, part) for part in parts):
            return version
    return 0


def _is_whole(changes: Storage, checkpoint: str) -> bool:
    """Whether a checkpoint is durable and readable: all that is older hangs on it."""
    try:
        changes.sync(checkpoint)
        pq.ParquetFile(open_input(changes, checkpoint)).read()
    except (pa.ArrowInvalid, OSError):
        return False  # a crash cut it short: the one before it stays
    return True


def _removed_by(changes: Storage, version: int) -> Iterator[str]:
    content = changes.read(commit_path(version)) or b""
    for line in content.splitlines():
        if line.startswith(b'{"remove"'):
            yield unquote(json.loads(line)["remove"]["path"])
