"""A table of a lake in an object store, moved by a process that dies at any step."""

from __future__ import annotations

from typing import Any

import pytest

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

pytestmark = pytest.mark.s3


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


@pytest.mark.parametrize("steps", range(len(OBJECTS) + 2))
def test_a_table_that_is_removed_is_gone_or_there(lake: Mortal, steps: int) -> None:
    lake.left = steps
    with pytest.raises(Died):
        remove(SPARK, lake, "public/t")
    lake.left = -1
    recover(SPARK, lake)
    assert objects(lake, "public/t") == ({} if steps else CONTENT)
