"""The writer's commits: rows and position in one step, by one writer only."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgtide.errors import LogFenced, LogUnavailable
from pgtide.log.compaction import compact
from pgtide.log.delta_commits import DeltaCommits
from pgtide.log.follow import CommitTail
from pgtide.log.maintenance import checkpoint
from pgtide.log.maintenance_commits import commit_maintenance
from pgtide.log.retention import clean
from pgtide.log.shapes import ShapeStore
from pgtide.log.snapshot import read_snapshot
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path, open_table
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn, Position
from tests.log.conftest import make_rows


def _second_writer(log: Any) -> LogWriter:
    return LogWriter(log.path, None, "pgtide")


def _commits(log: Any) -> list[str]:
    return sorted(path.name for path in Path(log.changes.root, "_delta_log").glob("*.json"))


def test_delta_rs_reads_what_the_writer_commits(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}, {"lsn": 1000, "seq": 1}])
    table = DeltaTable(small_log.changes.root)
    assert table.version() == small_log.writer.version == 1
    assert table.transaction_version("pgtide/pgtide") == 1001
    assert table.transaction_version("pgtide/pgtide/timeline") == 1
    assert table.history(1)[0]["operation"] == "WRITE"
    assert table.to_pyarrow_table().num_rows == 2
    assert not list(Path(small_log.changes.root).glob("_staged*"))


def test_a_second_writer_is_fenced(small_log: Any) -> None:
    second = _second_writer(small_log)
    small_log.append([{"lsn": 1000}])
    before = _commits(small_log)
    with pytest.raises(LogFenced, match="another capture"):
        second.commit([], Lsn(1001), 1)
    assert _commits(small_log) == before
    with pytest.raises(LogFenced):
        second.reopen()


def test_commits_of_maintenance_are_passed(small_log: Any) -> None:
    small_log.commit_each(32)
    version = small_log.writer.version
    assert compact(small_log.changes, open_table(small_log.changes), Position(Lsn(10**9))) == 32
    small_log.append([{"lsn": 3000}])
    assert small_log.writer.version == version + 2
    assert small_log.writer.position == 3001


def test_delta_rs_commits_alike(small_log: Any) -> None:
    """What appends on an object store, here beside the writer of a local path."""
    commits = DeltaCommits(small_log.changes, "pgtide", open_table(small_log.changes))
    commits.renew()
    commits.append([], Lsn(1008), 1)
    commits.renew()
    commits.append(small_log.writer.write_part(make_rows([{"lsn": 1010}])), Lsn(1011), 1)
    assert commits.version == 2
    small_log.writer = _second_writer(small_log)
    assert (small_log.writer.version, small_log.writer.position) == (2, Lsn(1011))
    small_log.append([{"lsn": 1020}])
    with pytest.raises(LogFenced):
        commits.append([], Lsn(1028), 1)
    commits.renew()  # has seen the other's position, and must not be taken for ours
    with pytest.raises(LogFenced):
        commits.append([], Lsn(1028), 1)
    assert small_log.positions() == [(1010, 0), (1020, 0)]


def test_what_a_killed_writer_left_is_durable_before_it_is_built_on(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log.commit_each(3)
    synced: list[str] = []
    monkeypatch.setattr(Storage, "sync", lambda self, path: synced.append(path))
    _second_writer(small_log)
    assert synced == [commit_path(version) for version in range(4)]


def _take_over(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another capture writes, and clean-up removes the versions that the first one knew."""
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSIONS", 0)
    other = _second_writer(log)
    for _ in range(4):
        other.commit([], Lsn(other.position + 8), 1)
    checkpoint(log.changes, open_table(log.changes))
    assert clean(log.changes, [], now=time.time() + 60) > 0


def test_a_writer_that_clean_up_overtook_is_fenced(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of its next version is free again, and must not be taken for new."""
    small_log.append([{"lsn": 1000}])
    _take_over(small_log, monkeypatch)
    before = _commits(small_log)
    with pytest.raises(LogFenced):
        small_log.append([{"lsn": 1010}])
    assert _commits(small_log) == before


def test_a_writer_that_stood_still_in_the_middle_of_a_commit_is_fenced(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log.append([{"lsn": 1000}])
    storage = small_log.writer.storage
    create = storage.create

    def slow_create(path: str, data: bytes) -> bool:
        _take_over(small_log, monkeypatch)
        return bool(create(path, data))

    monkeypatch.setattr(storage, "create", slow_create)
    with pytest.raises(LogFenced):
        small_log.append([{"lsn": 1010}])
    assert small_log.positions() == [(1000, 0)], "what the other one wrote is what counts"


def test_a_writer_whose_versions_were_only_cleaned_goes_on(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSIONS", 0)
    small_log.commit_each(3)
    table = open_table(small_log.changes)
    compact(small_log.changes, table, Position(Lsn(10**9)), everything=True)
    checkpoint(small_log.changes, table)
    assert clean(small_log.changes, [], now=time.time() + 60) == 4
    small_log.append([{"lsn": 3000}])
    assert small_log.positions()[-1] == (3000, 0)


def test_a_table_that_someone_altered_is_opened_again(small_log: Any) -> None:
    DeltaTable(small_log.changes.root).alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(LogUnavailable, match="altered"):
        small_log.append([{"lsn": 1000}])
    small_log.writer = _second_writer(small_log)
    small_log.append([{"lsn": 1000}])
    assert small_log.positions() == [(1000, 0)]


def test_every_line_of_a_commit_is_an_action(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}])
    content = small_log.changes.read(commit_path(1))
    actions = [json.loads(line) for line in content.splitlines()]
    assert [next(iter(action)) for action in actions] == ["commitInfo", "add", "txn", "txn"]
    assert actions[1]["add"]["dataChange"] is True


def test_shapes_that_a_killed_writer_left_are_made_durable(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(Storage, "sync", lambda self, path: synced.append(path))
    ShapeStore(small_log.storage, Lsn(500))
    assert [path for path in synced if path.endswith(".json")] == [commit_path(0), commit_path(1)]
    assert sum(path.endswith(".parquet") for path in synced) == 1


def test_a_writer_that_failed_leaves_no_commit_behind_for_followers(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log.append([{"lsn": 1000}])
    storage = small_log.writer.storage
    create = storage.create

    def slow_create(path: str, data: bytes) -> bool:
        _take_over(small_log, monkeypatch)
        return bool(create(path, data))

    monkeypatch.setattr(storage, "create", slow_create)
    with pytest.raises(LogFenced):
        small_log.append([{"lsn": 1010}])
    assert CommitTail(small_log.changes, 1).next_files() is None


def test_a_race_of_maintenance_that_cannot_be_told_is_a_storage_error(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log.commit_each(3)
    first, second = open_table(small_log.changes), open_table(small_log.changes)
    end = Position(Lsn(10**9))
    snapshot = read_snapshot(second)
    assert compact(small_log.changes, first, end, everything=True) == 3

    def update() -> None:
        raise DeltaError("clean-up was there first")

    monkeypatch.setattr(second, "update_incremental", update)
    with pytest.raises(LogUnavailable, match="maintenance"):
        commit_maintenance(small_log.changes, second, snapshot, [])
