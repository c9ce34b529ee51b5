"""Retention and clean-up: what leaves the log, and in which order, so that nobody is surprised.

``retain`` drops old rows from the log and records from where it is complete. ``clean``
removes old versions: what a commit, an open or a poll of Delta costs grows with the number
of files in the Delta log (5 µs a name and commit, measured), so only some hundred are kept.
Data files stay for an hour after the version that needed them last, since somebody may be in
the middle of reading it; until then they are listed below ``_removed``. The order is list,
then forget the version, then delete the files: a crash in between loses track of nothing.

Neither passes the slowest registered reader. Delta's own vacuum is not used: it forgets files
whose tombstones expired, and knows nothing of readers.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction

from pgtide.log.files import delete, open_input, walk
from pgtide.log.maintenance_commits import commit_maintenance, remove_action
from pgtide.log.readers import Reader, slowest
from pgtide.log.snapshot import DataFile, Snapshot, newest_snapshot, read_snapshot
from pgtide.log.source import complete_from_app_id
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.position import Lsn

KEEP_VERSIONS = 100  # newest versions that stay whatever their age
KEEP_VERSION_SECONDS = 5.0  # time that a version stays at least: someone may be opening it
KEEP_FILES = 3600.0  # seconds that the data files of a version that is gone can still be read
KEEP_ORPHANS = 86_400.0  # seconds until a file that no commit names counts as left behind
_DAY = 86_400  # seconds

_DELTA_LOG = "_delta_log"
_REMOVED = "_removed"  # hidden from Delta by its underscore


def retain(
    changes: Storage,
    table: DeltaTable,
    readers: Iterable[Reader],
    retention: float,
    *,
    now: float | None = None,
) -> int:
    """Drop rows that have been in the log for ``retention`` seconds, a day at a time.

    Returns how many files were dropped. They go from the front, as far as the slowest reader is
    done with them: what remains is always the whole log from one position on. What counts is
    when a row was logged: the source's clock may be wrong, and a backlog is not old on arrival.
    """
    snapshot = read_snapshot(table)
    dropped = _expired(snapshot, readers, retention, time.time() if now is None else now)
    if not dropped:
        return 0
    complete_from = Lsn(max(file.high.lsn for file in dropped) + 1)
    kept = Transaction(complete_from_app_id(snapshot.source.slot), int(complete_from))
    removed = [remove_action(file) for file in dropped]
    return len(dropped) if commit_maintenance(changes, table, snapshot, removed, kept) else 0


def _expired(
    snapshot: Snapshot, readers: Iterable[Reader], retention: float, now: float
) -> list[DataFile]:
    before = (now - retention) // _DAY * _DAY
    kept: list[DataFile] = []
    old: list[DataFile] = []
    logged_at = now
    for file in sorted(snapshot.files, key=lambda file: file.high, reverse=True):
        # A time that is yet to come is from a wrong clock: the file is as old as the one after it.
        if file.logged_at_ms / 1000 <= now:
            logged_at = file.logged_at_ms / 1000
        (old if logged_at < before else kept).append(file)
    floors = [file.low.lsn for file in kept]
    reached = slowest(readers)
    if reached is not None:
        floors.append(reached[1].lsn)
    floor = min(floors, default=None)
    return [file for file in old if floor is None or file.high.lsn < floor]


def clean(changes: Storage, readers: Iterable[Reader], *, now: float | None = None) -> int:
    """Remove versions that nobody needs, and data files that nobody has needed for an hour.

    Returns how many versions went.
    """
    now = time.time() if now is None else now
    _delete_listed(changes, now - KEEP_FILES)
    names = _versions(changes)
    limit = _first_kept(changes, names, readers, now - KEEP_VERSION_SECONDS)
    expired = sorted(version for version in names if version < limit)
    removed = [path for version in expired for path in _removed_by(changes, version)]
    if removed:
        # A name of its own: of two that clean at once, the slower finds fewer files to list.
        name = f"{_REMOVED}/{limit:020d}-{uuid.uuid4()}.json"
        changes.replace(name, json.dumps(removed).encode())
    for version in expired:
        for path, _ in names[version]:
            delete(changes, path)
    return len(expired)


def _delete_listed(changes: Storage, before: float) -> None:
    for entry in list(walk(changes, _REMOVED)):
        if entry.modified < before:
            for path in _listed(changes, entry.path):
                delete(changes, path)
            delete(changes, entry.path)


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
        if not entry.path.startswith((f"{_DELTA_LOG}/", f"{_REMOVED}/")) and entry.modified < before
    ]
    known = set(in_use) | {file.path for file in newest_snapshot(changes).files}
    for version in _versions(changes):
        known.update(_removed_by(changes, version))
    for entry in walk(changes, _REMOVED):
        known.update(_listed(changes, entry.path))
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
    limits = [max(names, default=0) - KEEP_VERSIONS, *young]
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


def _listed(changes: Storage, path: str) -> list[str]:
    content = changes.read(path) if path.endswith(".json") else None
    # Otherwise half of an atomic write, or another clean-up has been here.
    return [] if content is None else [str(item) for item in json.loads(content)]


def _removed_by(changes: Storage, version: int) -> Iterator[str]:
    content = changes.read(commit_path(version)) or b""
    for line in content.splitlines():
        if line.startswith(b'{"remove"'):
            yield unquote(json.loads(line)["remove"]["path"])
