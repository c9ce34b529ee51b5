"""A table of a lake in an object store, moved by a process that dies at any step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.log.files import delete, walk
from pgtide.log.storage import Storage
from pgtide.sinks.delta import moving
from pgtide.sinks.delta.moving import move, recover, remove
from pgtide.sinks.directories import OWN
from tests.fixtures.s3 import ObjectStore

OBJECTS = ("_delta_log/00000000000000000000.json", "_delta_log/_last_checkpoint", "a b", "part-1")
CONTENT: dict[str, bytes | None] = {path: path.encode() for path in OBJECTS}
STEPS = 3 + 2 * len(OBJECTS)  # each object is copied and deleted; the note is there in two forms
SPARK: Any = None  # knows of S3 only in a process of its own


class Died(BaseException):
    """As good as a kill: nothing is done any more."""


class Mortal(Storage):
    """Storage that changes so many objects, and then none."""

    left = -1

    def step(self) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1

    def replace(self, path: str, data: bytes) -> None:
        self.step()
        super().replace(path, data)

    @property
    def filesystem(self) -> Any:
        return _Files(super().filesystem, self)


class _Files:
    def __init__(self, files: Any, owner: Mortal) -> None:
        self._files, self._owner = files, owner

    def __getattr__(self, name: str) -> Any:
        if name in ("copy_file", "delete_file"):
            self._owner.step()
        return getattr(self._files, name)


def objects(lake: Storage, place: str) -> dict[str, bytes | None]:
    return {
        entry.path.removeprefix(f"{place}/"): lake.read(entry.path) for entry in walk(lake, place)
    }


def delete_all(_: Any, lake: Storage, place: str) -> None:
    for path in objects(lake, place):
        delete(lake, f"{place}/{path}")


@pytest.fixture
def lake(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Mortal:
    """With one table; what Spark deletes at once goes step by step."""
    monkeypatch.setattr(moving, "_AT_ONCE", 1)
    monkeypatch.setattr(moving, "_delete_all", delete_all)
    lake = Mortal(object_store.path(), object_store.options)
    for path in OBJECTS:
        lake.write(f"public/t/{path}", path.encode())
    return lake


@pytest.mark.s3
@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_one_place_has_all_of_it(lake: Mortal, steps: int) -> None:
    lake.write("public/u/other", b"not of the table")
    lake.left = steps
    if steps < STEPS:
        with pytest.raises(Died):
            move(SPARK, lake, "public/t", "public/u")
    else:
        move(SPARK, lake, "public/t", "public/u")
    lake.left = -1
    recover(SPARK, lake)
    there = objects(lake, "public/t")
    assert there in (CONTENT, {}), "all or nothing"
    if there:
        assert objects(lake, "public/u") == {"other": b"not of the table"}
        move(SPARK, lake, "public/t", "public/u")
    assert objects(lake, "public/t") == {}
    assert objects(lake, "public/u") == {**CONTENT, "other": b"not of the table"}
    assert objects(lake, OWN) == {}


@pytest.mark.s3
@pytest.mark.parametrize("steps", [2, len(OBJECTS) + 1, len(OBJECTS) + 2, STEPS - 1])
def test_recovery_that_dies_at_any_step(lake: Mortal, steps: int) -> None:
    """While it copies, before and while it deletes, and before the note goes."""
    lake.left = steps
    with pytest.raises(Died):
        move(SPARK, lake, "public/t", "public/u")
    for again in range(len(OBJECTS) + 2):
        lake.left = again
        with suppress(Died):
            recover(SPARK, lake)
        here, there = objects(lake, "public/t"), objects(lake, "public/u")
        assert CONTENT in (here, there), "one place has all of it"
    assert sorted(map(len, (here, there))) == [0, len(OBJECTS)]
    assert objects(lake, OWN) == {}


@pytest.mark.s3
def test_what_another_has_undone_is_not_taken_for_moved(
    lake: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of a pipeline that overlap: the other takes the first one for dead."""
    each = moving._each

    def interrupted(act: Callable[[str], None], paths: list[str]) -> None:
        monkeypatch.setattr(moving, "_each", each)
        each(act, paths)
        recover(SPARK, lake)

    monkeypatch.setattr(moving, "_each", interrupted)
    with pytest.raises(TargetUnavailable, match="while it was moved"):
        move(SPARK, lake, "public/t", "public/u")
    assert objects(lake, "public/t") == CONTENT
    recover(SPARK, lake)
    move(SPARK, lake, "public/t", "public/u")
    assert objects(lake, "public/u") == CONTENT


@pytest.mark.s3
def test_objects_that_stand_for_directories_are_no_notes(lake: Mortal) -> None:
    lake.write(f"{OWN}/moves/public", b"")
    recover(SPARK, lake)
    assert objects(lake, "public/t") == CONTENT


@pytest.mark.s3
@pytest.mark.parametrize("steps", range(len(OBJECTS) + 2))
def test_a_table_that_is_removed_is_gone_or_there(lake: Mortal, steps: int) -> None:
    lake.left = steps
    with pytest.raises(Died):
        remove(SPARK, lake, "public/t")
    lake.left = -1
    recover(SPARK, lake)
    assert objects(lake, "public/t") == ({} if steps else CONTENT)


def test_a_local_place_without_files_is_free(tmp_path: Path) -> None:
    """A crash may leave the directories of a table that was to be made."""
    lake = Storage(str(tmp_path))
    lake.write("public/t/part-1", b"row")
    (tmp_path / "public/u/_delta_log").mkdir(parents=True)
    move(SPARK, lake, "public/t", "public/u")
    assert objects(lake, "public") == {"u/part-1": b"row"}


def test_a_local_place_with_files_is_not(tmp_path: Path) -> None:
    """Of whom they are nobody knows, and trying again would not help."""
    lake = Storage(str(tmp_path))
    lake.write("public/t/part-1", b"row")
    lake.write("public/u/mine", b"no table")
    with pytest.raises(TargetError, match="new name is taken") as refused:
        move(SPARK, lake, "public/t", "public/u")
    assert str(tmp_path / "public/u") in refused.value.detail
    assert len(objects(lake, "public")) == 2
