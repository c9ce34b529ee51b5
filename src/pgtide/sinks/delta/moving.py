"""Moving and removing a table of a lake in an object store, where no directory goes at once.

Its objects are copied, then deleted, one by one. A note beside the table says which of the two is
under way: what a crash leaves of the first is undone, of the second completed. So one of the two
places always has all of the table, and whoever asks ``recover`` first never sees the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pgtide.log.files import delete, walk
from pgtide.log.storage import Storage
from pgtide.sinks.target_storage import target_answers

NOTE = "_pgtide_move.json"
_AT_ONCE = 8  # objects; each takes a round trip or two


def move(lake: Storage, place: str, to: str) -> None:
    """Move a table to a place below the same path where there is none."""
    with target_answers():
        _note(lake, place, to, copied=False)
        _each(
            lambda path: lake.filesystem.copy_file(f"{place}/{path}", f"{to}/{path}"),
            _objects(lake, place),
        )
        _note(lake, place, to, copied=True)
    recover(lake, place)


def remove(lake: Storage, place: str) -> None:
    """Remove a table: a Delta log without its first files could not even be opened."""
    with target_answers():
        _note(lake, place, "", copied=True)
    recover(lake, place)


def recover(lake: Storage, place: str) -> None:
    """Undo or complete what was done to the table of a place, if it was interrupted."""
    with target_answers():
        content = lake.read(f"{place}/{NOTE}")
        if content is None:
            return
        note = json.loads(content)
        gone = place if note["copied"] else note["to"]
        _each(lambda path: delete(lake, f"{gone}/{path}"), _objects(lake, place))
        delete(lake, f"{place}/{NOTE}")


def _note(lake: Storage, place: str, to: str, *, copied: bool) -> None:
    lake.replace(f"{place}/{NOTE}", json.dumps({"to": to, "copied": copied}).encode())


def _objects(lake: Storage, place: str) -> list[str]:
    # Empty ones stand for directories, which Spark makes and nobody needs; no other can be read.
    found = [entry.path for entry in walk(lake, place) if entry.size]
    paths = [path.removeprefix(f"{place}/") for path in found]
    return [path for path in paths if path != NOTE]


def _each(act: Callable[[str], None], paths: list[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pgtide-move") as threads:
        for _ in threads.map(act, paths):
            pass  # but raise what one of them raised
