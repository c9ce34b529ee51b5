"""Retention, clean-up and orphans: what goes, what stays, and for whom."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgtide.errors import ConfigError, LogError
from pgtide.log.compaction import compact
from pgtide.log.files import delete
from pgtide.log.maintenance import checkpoint
from pgtide.log.readers import forget_reader, list_readers, slowest, update_reader
from pgtide.log.retention import clean, retain, sweep
from pgtide.log.table import commit_path, open_table
from pgtide.position import Lsn, Position
from tests.log.conftest import NOON

DAY = 86_400.0  # seconds; what is kept, in these tests
THIRD = datetime(2026, 3, 3, 10, tzinfo=UTC)


def _retain(log: Any, readers: Any = (), now: datetime = THIRD) -> int:
    """Drop what was logged before the second of March."""
    return retain(log.changes, open_table(log.changes), readers, DAY, now=now.timestamp())


def _data_files(log: Any) -> set[str]:
    return {str(p.relative_to(log.changes.local)) for p in log.changes.local.glob("day=*/*")}


def _commit_files(log: Any) -> list[int]:
    return sorted(int(p.name[:20]) for p in log.changes.local.glob("_delta_log/*.json"))


def _two_days(log: Any, day_later: datetime) -> None:
    log.commit_each(3)
    log.commit_each(3, first=2000, committed_at=day_later)


def test_old_days_go_and_the_log_says_from_where_it_is_complete(
    small_log: Any, day_later: Any
) -> None:
    _two_days(small_log, day_later)
    assert _retain(small_log) == 3
    assert _retain(small_log) == 0
    snapshot = small_log.open().snapshot()
    assert snapshot.complete_from == Lsn(1021)
    assert small_log.positions()[0] == (2000, 0)
    small_log.append([{"lsn": 3000, "committed_at": day_later}])  # by a handle that missed it


def test_the_slowest_reader_holds_days_back(small_log: Any, day_later: Any) -> None:
    _two_days(small_log, day_later)
    update_reader(small_log.storage, "lake", 1, Position(Lsn(1010), 1))
    assert _retain(small_log, list_readers(small_log.storage)) == 1
    assert small_log.open().snapshot().complete_from == Lsn(1001)
    forget_reader(small_log.storage, "lake")
    assert _retain(small_log, list_readers(small_log.storage)) == 2


def test_what_remains_is_whole_although_clocks_are_not_exact(
    small_log: Any, day_later: Any
) -> None:
    small_log.append([{"lsn": 1000}])
    small_log.append([{"lsn": 1010, "committed_at": day_later}])
    small_log.append([{"lsn": 1020}])  # capture's clock was set back
    assert _retain(small_log) == 1
    assert small_log.positions() == [(1010, 0), (1020, 0)]


@pytest.mark.parametrize("compacted", [False, True], ids=["as_written", "compacted"])
def test_rows_live_from_when_they_were_logged(
    small_log: Any, day_later: Any, compacted: bool
) -> None:
    """Neither a source whose clock is wrong nor a backlog changes how long rows stay."""
    future, past = datetime(2099, 1, 1, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC)
    small_log.append([{"lsn": 1000, "committed_at": future}], logged_at=NOON)
    small_log.commit_each(3, first=1010)
    small_log.append([{"lsn": 2000, "committed_at": past}], logged_at=day_later)
    small_log.append([{"lsn": 2010}], logged_at=day_later)
    if compacted:
        while compact(
            small_log.changes, open_table(small_log.changes), Position(Lsn(1100)), everything=True
        ):
            pass
    assert _retain(small_log) == (2 if compacted else 4)
    assert small_log.positions() == [(2000, 0), (2010, 0)]


def test_a_wrong_clock_of_captures_own_does_not_hold_rows(small_log: Any, day_later: Any) -> None:
    small_log.append([{"lsn": 1000}])
    small_log.append([{"lsn": 1010}], logged_at=datetime(2099, 1, 1, tzinfo=UTC))
    small_log.append([{"lsn": 1020}])
    small_log.append([{"lsn": 1030}], logged_at=day_later)
    small_log.append([{"lsn": 1040}], logged_at=datetime(2099, 1, 1, tzinfo=UTC))
    assert _retain(small_log) == 3
    assert small_log.positions() == [(1030, 0), (1040, 0)]


def test_each_row_lives_at_least_as_long_as_retention_says(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}])  # at noon
    midnight = NOON.replace(hour=0)
    assert _retain(small_log, now=midnight + timedelta(days=2, seconds=-1)) == 0
    assert _retain(small_log, now=midnight + timedelta(days=2)) == 1


@pytest.fixture
def few_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSIONS", 0)


@pytest.mark.usefixtures("few_versions")
def test_clean_removes_versions_first_and_their_files_later(small_log: Any) -> None:
    small_log.commit_each(32)
    table = open_table(small_log.changes)
    compact(small_log.changes, table, Position(Lsn(10**9)))
    small_log.commit_each(2, first=5000)
    table.update_incremental()
    checkpoint(small_log.changes, table)
    before = small_log.positions()
    assert clean(small_log.changes, []) == 0, "versions may still be in use"
    assert clean(small_log.changes, [], now=time.time() + 20) == 35
    assert _commit_files(small_log) == [35]
    assert len(_data_files(small_log)) == 35, "someone may be reading the files"
    assert sweep(small_log.changes, keep=0, now=time.time() + 1) == 0
    assert small_log.positions() == before
    small_log.append([{"lsn": 9000}])
    clean(small_log.changes, [], now=time.time() + 4000)
    assert len(_data_files(small_log)) == 4
    assert not list(small_log.changes.local.glob("_removed/*"))
    assert small_log.positions() == [*before, (9000, 0)]


def test_the_newest_versions_stay(small_log: Any) -> None:
    table = open_table(small_log.changes)
    small_log.commit_each(5)
    table.update_incremental()
    checkpoint(small_log.changes, table)
    small_log.commit_each(5, first=2000)
    assert clean(small_log.changes, [], now=time.time() + 10**6) == 0


@pytest.mark.usefixtures("few_versions")
def test_clean_keeps_what_the_slowest_reader_may_need(small_log: Any) -> None:
    table = open_table(small_log.changes)
    for round_ in range(3):
        small_log.commit_each(4, first=1000 * (round_ + 1))
        table.update_incremental()
        checkpoint(small_log.changes, table)
    update_reader(small_log.storage, "slow", 9, Position(Lsn(0)))
    update_reader(small_log.storage, "fast", 12, Position(Lsn(5000)))
    clean(small_log.changes, list_readers(small_log.storage), now=time.time() + 60)
    assert _commit_files(small_log) == list(range(8, 13))


@pytest.mark.usefixtures("few_versions")
def test_a_checkpoint_cut_short_by_a_crash_is_not_relied_on(small_log: Any) -> None:
    table = open_table(small_log.changes)
    small_log.commit_each(4)
    table.update_incremental()
    version = checkpoint(small_log.changes, table)
    path = small_log.changes.local / f"_delta_log/{version:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    small_log.commit_each(1, first=2000)
    assert clean(small_log.changes, [], now=time.time() + 60) == 0


def test_files_that_no_commit_names_are_swept(small_log: Any) -> None:
    small_log.commit_each(2)
    committed = _data_files(small_log)
    orphan = small_log.changes.local / "day=2026-03-01/orphan.parquet"
    orphan.write_bytes(b"written, then killed before the commit")
    part = small_log.changes.local / "day=2026-03-01/part.parquet"
    part.write_bytes(b"part of a transaction that is still coming")
    assert sweep(small_log.changes) == 0, "young files may be about to be committed"
    os.utime(orphan, (0, 0))
    os.utime(part, (0, 0))
    assert sweep(small_log.changes, in_use=["day=2026-03-01/part.parquet"]) == 1
    assert _data_files(small_log) == {*committed, "day=2026-03-01/part.parquet"}


def test_a_file_that_was_just_replaced_is_no_orphan(small_log: Any) -> None:
    small_log.commit_each(32)
    compact(small_log.changes, open_table(small_log.changes), Position(Lsn(10**9)))
    assert sweep(small_log.changes, keep=0, now=time.time() + 1) == 0
    assert len(_data_files(small_log)) == 33


def test_readers_by_name(small_log: Any) -> None:
    log = small_log.storage
    assert list_readers(log) == []
    assert slowest([]) is None
    update_reader(log, "lake", 5, Position(Lsn(100), 2))
    update_reader(log, "kafka", 9, Position(Lsn(90)))
    update_reader(log, "lake", 6, Position(Lsn(110), 0))
    lake = next(r for r in list_readers(log) if r.name == "lake")
    assert (lake.version, lake.position) == (6, Position(Lsn(110), 0))
    assert slowest(list_readers(log)) == (6, Position(Lsn(90)))
    with pytest.raises(ConfigError, match="reader name"):
        update_reader(log, "../x", 1, Position(Lsn(1)))


def test_a_readers_file_that_makes_no_sense_stops_maintenance(small_log: Any) -> None:
    update_reader(small_log.storage, "lake", 5, Position(Lsn(100), 2))
    (small_log.storage.local / "readers/lake.json").write_text("{}")
    with pytest.raises(LogError, match="cannot be understood"):
        list_readers(small_log.storage)


@pytest.mark.usefixtures("few_versions")
def test_clean_up_that_finds_half_of_the_versions_gone_loses_track_of_no_file(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one removes them at the same time, or was killed while it did."""
    table = open_table(small_log.changes)
    for first in (1000, 2000):
        small_log.commit_each(3, first=first)
        table.update_incremental()
        compact(small_log.changes, table, Position(Lsn(first + 100)), everything=True)
    small_log.commit_each(1, first=5000)
    table.update_incremental()
    checkpoint(small_log.changes, table)
    later = time.time() + 20

    def delete_some(changes: Any, path: str) -> None:
        if path == commit_path(6):  # versions 4 and 8 merged
            raise KeyboardInterrupt
        delete(changes, path)

    with monkeypatch.context() as patch:
        patch.setattr("pgtide.log.retention.delete", delete_some)
        with pytest.raises(KeyboardInterrupt):
            clean(small_log.changes, [], now=later)
    assert clean(small_log.changes, [], now=later) == 3
    clean(small_log.changes, [], now=later + 4000)
    assert len(_data_files(small_log)) == 2
