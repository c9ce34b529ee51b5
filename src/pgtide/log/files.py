"""Looking at and removing the log's files, on a local path or in an object store.

``Storage`` writes; this is the other half: list, open for reading, delete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from pgtide.errors import LogError
from pgtide.log.storage import Storage, unavailable


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: path relative to the storage's root, bytes, time of its last change (Unix)."""

    path: str
    size: int
    modified: float


def walk(storage: Storage, path: str) -> Iterator[Entry]:
    """All files below a directory, at any depth; none when it does not exist."""
    selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
    try:
        infos = storage.filesystem.get_file_info(selector)
    except OSError as exc:
        raise unavailable(exc) from exc
    for info in infos:
        if info.type == fs.FileType.File:
            yield Entry(info.path, info.size or 0, (info.mtime_ns or 0) / 1e9)


def open_input(storage: Storage, path: str) -> pa.NativeFile:
    """Open for random access; FileNotFoundError when there is no such file."""
    return storage.filesystem.open_input_file(path)


def delete(storage: Storage, path: str) -> None:
    """Remove a file, or find it gone already."""
    try:
        storage.filesystem.delete_file(path)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise unavailable(exc) from exc


def file_missing(exc: FileNotFoundError) -> LogError:
    """The error for a data file that the log names and that is not there."""
    return LogError(
        "a data file of the log is missing",
        detail=str(exc).splitlines()[0],
        hint="Someone removed it: restore the log from a backup or start a new one.",
    )
