"""Moving and removing a table of a lake: whatever a crash leaves, one place has all of it or none.

On a local path its directory goes at once. In an object store its objects are copied, then deleted,
one by one. A note in the lake says which of the two is under way: what a crash leaves of the first
is undone, of the second completed, by ``recover``, before anything else is done to the tables.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.log.files import delete, walk
from pgtide.log.storage import Storage
from pgtide.sinks.directories import OWN
from pgtide.sinks.target_storage import target_answers
from pgtide.spark.failures import as_pgtide_error
from pgtide.spark.paths import spark_path

_NOTES = f"{OWN}/moves"
_AT_ONCE = 8  # objects; each takes a round trip or two


def move(spark: SparkSession, lake: Storage, place: str, to: str) -> None:
    """Move a table to a place in the same lake where there is none."""
    with target_answers():
        if lake.local is not None:
            _move_directory(lake.local / place, lake.local / to)
            return
        _note(lake, place, to, copied=False)
        _each(
            lambda path: lake.filesystem.copy_file(f"{place}/{path}", f"{to}/{path}"),
            _objects(lake, place),
        )
        _refuse_less(lake, place, to)
        _note(lake, place, to, copied=True)
        _finish(spark, lake, _note_of(place))


def remove(spark: SparkSession, lake: Storage, place: str) -> None:
    """Remove a table, or find none: a Delta log without its first files could not be opened."""
    with target_answers():
        if lake.local is not None:
            _remove_directory(lake.local / place)
            return
        _note(lake, place, "", copied=True)
        _finish(spark, lake, _note_of(place))


def recover(spark: SparkSession, lake: Storage) -> None:
    """Undo or complete what was interrupted; nobody may be moving or removing tables."""
    with target_answers():
        notes = [entry.path for entry in walk(lake, _NOTES) if entry.size]  # or a directory
        for path in notes:
            _finish(spark, lake, path)


def _move_directory(table: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.is_dir() and not any(path.is_file() for path in to.rglob("*")):
        shutil.rmtree(to)  # left of a table that was to be made
    try:
        table.rename(to)
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise name_taken(str(table), str(to)) from exc


def name_taken(place: str, to: str) -> TargetError:
    """The refusal to move a table to where there is something."""
    return TargetError(
        "a table's new name is taken in the lake",
        detail=f"{place} cannot become {to}, which exists.",
        hint="Move or delete what is there, then run: pgtide run",
    )


def _refuse_less(lake: Storage, place: str, to: str) -> None:
    """Delete nothing unless all of it is at its new place: two runs of a pipeline may overlap."""
    if not {*_objects(lake, place)} <= {*_objects(lake, to)}:
        raise TargetUnavailable(
            "a table of the lake was changed while it was moved",
            detail=f"{lake.root}/{to} lacks some of it; nothing was deleted.",
            hint="Run a pipeline once at a time; only pgtide may write to its tables.",
        )


def _remove_directory(table: Path) -> None:
    aside = table.with_name(f"{table.name}~")  # no table's directory ends so
    shutil.rmtree(aside, ignore_errors=True)
    if table.exists():
        table.rename(aside)
        shutil.rmtree(aside)


def _note_of(place: str) -> str:
    return f"{_NOTES}/{place}.json"


def _note(lake: Storage, place: str, to: str, *, copied: bool) -> None:
    note = {"place": place, "to": to, "copied": copied}
    lake.replace(_note_of(place), json.dumps(note).encode())


def _finish(spark: SparkSession, lake: Storage, path: str) -> None:
    """Delete what a note says is to go, then the note."""
    note = json.loads(lake.read(path) or b"")
    if note["copied"]:
        _delete_all(spark, lake, note["place"])
    else:
        copies = _objects(lake, note["place"])
        _each(lambda copy: delete(lake, f"{note['to']}/{copy}"), copies)
    delete(lake, path)


def _delete_all(spark: SparkSession, lake: Storage, place: str) -> None:
    """By Spark: it takes empty directories for a table, which it makes and delta-rs cannot name."""
    jvm: Any = spark.sparkContext._jvm
    session: Any = spark
    path = jvm.org.apache.hadoop.fs.Path(spark_path(f"{lake.root}/{place}"))
    try:
        files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
        files.delete(path, True)
    except Py4JError as exc:
        raise as_pgtide_error(exc, f"deleting {place}") from exc


def _objects(lake: Storage, place: str) -> list[str]:
    # Empty ones stand for directories, which nobody needs and delta-rs could not copy.
    found = [entry.path for entry in walk(lake, place) if entry.size]
    return [path.removeprefix(f"{place}/") for path in found]


def _each(act: Callable[[str], None], paths: list[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pgtide-move") as threads:
        for _ in threads.map(act, paths):
            pass  # but raise what one of them raised
