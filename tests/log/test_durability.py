"""Durable before it counts: the order of system calls, which no test without a power cut shows.

Each call is recorded with the file it concerns; leaving out any fsync fails a test here.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgtide.log import retention
from pgtide.log.compaction import compact
from pgtide.log.maintenance import checkpoint
from pgtide.log.readers import update_reader
from pgtide.log.shapes import ShapeStore
from pgtide.log.table import commit_path, open_table
from pgtide.log.writer import create_log
from pgtide.position import Lsn, Position
from tests.log.conftest import ORDERS, SmallLog, make_rows

_Call = tuple[str, str]


class Calls:
    """What was asked of the file system: ("fsync", "changes/day=…/") and the like."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.made: list[_Call] = []

    def add(self, name: str, path: str | Path) -> None:
        path = Path(path)
        shown = str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)
        slash = "/" if path.is_dir() else ""
        self.made.append((name, shown + slash))

    def take(self) -> list[_Call]:
        """Those since the last time; random parts of names are left out."""
        made, self.made = self.made, []
        return [(name, _plain(path)) for name, path in made]


def _plain(path: str) -> str:
    directory, _, name = path.rpartition("/")
    for kind, shown in ((".parquet", "DATA"), ("_staged-", "STAGED")):
        if kind in name and "checkpoint" not in name:
            name = shown
    return f"{directory}/{name}" if directory else name


@pytest.fixture
def calls(small_log: SmallLog, monkeypatch: pytest.MonkeyPatch) -> Calls:
    small_log.append([{"lsn": 900}])
    root = Path(small_log.path)
    recorded = Calls(root)
    fsync, link, rename, unlink = os.fsync, os.link, os.replace, os.unlink

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        recorded.add("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))

    def recorded_link(source: Path, target: Path) -> None:
        link(source, target)
        recorded.add("link", target)

    def recorded_replace(source: Path, target: Path) -> None:
        rename(source, target)
        recorded.add("replace", target)

    def recorded_delete(changes: Any, path: str) -> None:
        recorded.add("delete", changes.local / path)
        unlink(changes.local / path)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)
    monkeypatch.setattr(os, "replace", recorded_replace)
    monkeypatch.setattr(retention, "delete", recorded_delete)
    return recorded


def _commit(version: int) -> str:
    return f"changes/{commit_path(version)}"


def _checksum(version: int) -> str:
    return _commit(version).removesuffix("json") + "crc"


def test_a_new_log_is_durable(small_log: SmallLog, calls: Calls) -> None:
    path = Path(small_log.path, "other/log")
    create_log(
        str(path),
        system_identifier="1",
        database="shop",
        slot="pgtide",
        start=Lsn(1),
        timeline=1,
        baseline=[ORDERS],
    )
    commits = ("shapes/_delta_log/{0}", "shapes/_delta_log/{1}", "changes/_delta_log/{0}")
    files = {f"other/log/{c}".format(*(f"{v:020d}.json" for v in (0, 1))) for c in commits}
    synced = {path for _, path in calls.take()}
    assert synced == files | {
        "other/log/shapes/DATA",
        "./",
        "other/",
        "other/log/",
        "other/log/changes/",
        "other/log/changes/_delta_log/",
        "other/log/shapes/",
        "other/log/shapes/_delta_log/",
    }


def test_a_commit_is_durable_before_it_is_confirmed(small_log: SmallLog, calls: Calls) -> None:
    parts = small_log.writer.write_part(make_rows([{"lsn": 1000}]))
    assert calls.take() == [
        ("fsync", "changes/day=2026-03-01/DATA"),
        ("fsync", "changes/day=2026-03-01/"),
    ]
    small_log.writer.commit(parts, Lsn(1001), 1)
    assert calls.take() == [
        ("fsync", "changes/STAGED"),
        ("link", _commit(2)),
        ("fsync", "changes/_delta_log/"),
        ("replace", _checksum(2)),  # behind what is durable, and not durable itself
    ]


def test_a_new_day_has_a_durable_directory(
    small_log: SmallLog, calls: Calls, day_later: Any
) -> None:
    small_log.writer.write_part(make_rows([{"lsn": 1000, "committed_at": day_later}]))
    assert calls.take() == [
        ("fsync", "changes/"),
        ("fsync", "changes/day=2026-03-02/DATA"),
        ("fsync", "changes/day=2026-03-02/"),
    ]


def test_a_commit_of_maintenance_is_durable_before_it_is_built_on(
    small_log: SmallLog, calls: Calls
) -> None:
    small_log.append([{"lsn": 1000}])
    calls.take()
    table = open_table(small_log.changes)
    assert compact(small_log.changes, table, Position(Lsn(10**9)), everything=True) == 2
    assert calls.take() == [
        ("fsync", "changes/"),
        ("fsync", "changes/day=2026-03-01/DATA"),
        ("fsync", "changes/day=2026-03-01/"),
        ("fsync", _commit(3)),
        ("fsync", "changes/_delta_log/"),
    ]


def test_a_commit_that_is_passed_is_durable_before_the_next(
    small_log: SmallLog, calls: Calls
) -> None:
    small_log.append([{"lsn": 1000}])
    table = open_table(small_log.changes)
    compact(small_log.changes, table, Position(Lsn(10**9)), everything=True)
    calls.take()
    small_log.writer.commit([], Lsn(2000), 1)
    assert calls.take() == [
        ("fsync", "changes/STAGED"),
        ("fsync", _commit(3)),
        ("fsync", "changes/_delta_log/"),
        ("fsync", "changes/STAGED"),
        ("link", _commit(4)),
        ("fsync", "changes/_delta_log/"),
        ("replace", _checksum(4)),
    ]


def test_a_checkpoint_is_durable_before_what_it_replaces_goes(
    small_log: SmallLog, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEEP_VERSIONS", 0)
    small_log.append([{"lsn": 1000}])
    table = open_table(small_log.changes)
    compact(small_log.changes, table, Position(Lsn(10**9)), everything=True)
    small_log.append([{"lsn": 1010}])
    table.update_incremental()
    calls.take()
    version = checkpoint(small_log.changes, table)
    written = f"changes/_delta_log/{version:020d}.checkpoint.parquet"
    assert calls.take() == [
        ("fsync", written),
        ("fsync", "changes/_delta_log/"),
        ("fsync", "changes/_delta_log/_last_checkpoint"),
        ("fsync", "changes/_delta_log/"),
    ]
    assert retention.clean(small_log.changes, [], now=time.time() + 60) == version
    made = calls.take()
    assert made[:2] == [("fsync", written), ("fsync", "changes/_delta_log/")]
    listed = [index for index, call in enumerate(made) if call[1].startswith("changes/_removed/")]
    assert [made[index][0] for index in listed] == ["fsync", "replace", "fsync"]
    deleted = [call for call in made if call[0] == "delete"]
    commits = [call for call in deleted if call[1].endswith(".json")]
    assert commits == [("delete", _commit(v)) for v in range(version)]
    assert made.index(deleted[0]) > max(listed)


def test_a_reader_is_registered_durably(small_log: SmallLog, calls: Calls) -> None:
    update_reader(small_log.storage, "lake", 1, Position(Lsn(1)))
    assert calls.take() == [
        ("fsync", "./"),
        ("fsync", f"readers/lake.json.{os.getpid()}.tmp"),
        ("replace", "readers/lake.json"),
        ("fsync", "readers/"),
    ]


def test_a_shape_is_durable_before_rows_can_name_it(small_log: SmallLog, calls: Calls) -> None:
    store = ShapeStore(small_log.storage, Lsn(500))
    calls.take()
    store.assign(replace(ORDERS, oid=7))
    store.persist()
    made = calls.take()
    assert [path for _, path in made] == [
        "shapes/DATA",
        "shapes/",
        f"shapes/{commit_path(2)}",
        "shapes/_delta_log/",
    ]


def test_shapes_that_were_merged_are_durable(
    small_log: SmallLog, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.log.shapes.MOST_FILES", 2)
    store = ShapeStore(small_log.storage, Lsn(500))
    store.assign(replace(ORDERS, oid=7))
    store.persist()
    assert ("fsync", f"shapes/{commit_path(3)}") in calls.take()
