"""Compaction: the same rows in fewer files, cut by table, safe beside a writer."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pgtide.errors import LogError
from pgtide.log import compaction
from pgtide.log.compaction import compact, plan
from pgtide.log.order import open_pieces
from pgtide.log.snapshot import DataFile, read_snapshot
from pgtide.log.table import open_table
from pgtide.position import Lsn, Position
from tests.log.conftest import NOON


def _end(log: Any) -> Position:
    end: Position = log.open().end
    return end


def _compact_all(log: Any, **options: Any) -> int:
    table, merged = open_table(log.changes), 0
    while files := compact(log.changes, table, _end(log), **options):
        merged += files
    return merged


def test_a_full_read_is_the_same_before_and_after(small_log: Any) -> None:
    for lsn in range(1000, 1400, 10):
        small_log.append(
            [
                {"lsn": lsn, "seq": 0, "committed_at": None, "unchanged": [2]},
                {"lsn": lsn, "seq": 1, "table": "events", "shape": 2, "after": [str(lsn), None]},
                {"lsn": lsn, "seq": 2, "op": "delete", "before": ["1", None, None], "after": None},
            ]
        )
    before = list(small_log.open().events())
    rows = [batch.to_pylist() for batch in small_log.open().batches()]
    assert _compact_all(small_log) == 40
    assert list(small_log.open().events()) == before
    flat = [row for batch in rows for row in batch]
    again = [row for batch in small_log.open().batches() for row in batch.to_pylist()]
    assert again == flat
    assert len(small_log.open().snapshot().files) == 1


def test_statistics_of_the_result(small_log: Any) -> None:
    small_log.commit_each(32)
    _compact_all(small_log)
    (file,) = small_log.open().snapshot().files
    assert (file.low, file.high) == (Position(Lsn(1000), 0), Position(Lsn(1310), 1))
    assert file.rows == 64
    assert file.table == ("public", "orders")
    actions = DeltaTable(small_log.changes.root).get_add_actions(flatten=True)
    assert {"min.op", "max.schema", "null_count.table"} <= set(actions.schema.names)


def test_the_tail_is_not_touched(small_log: Any) -> None:
    small_log.commit_each(40)
    table = open_table(small_log.changes)
    assert compact(small_log.changes, table, Position(Lsn(1350))) == 35
    assert compact(small_log.changes, table, Position(Lsn(1350))) == 0


def test_few_small_files_are_left_alone(small_log: Any) -> None:
    few = compaction.TIER_UNITS[0] - 1
    small_log.commit_each(few)
    assert _compact_all(small_log) == 0
    assert _compact_all(small_log, everything=True) == few
    assert _compact_all(small_log, everything=True) == 0, "there is nothing left to merge"


def test_a_day_that_is_over_is_merged_whole(small_log: Any, day_later: Any) -> None:
    small_log.commit_each(5)
    small_log.commit_each(5, first=2000, committed_at=day_later)
    assert _compact_all(small_log) == 5
    days = [file.day.isoformat() for file in small_log.open().snapshot().files]
    assert days.count("2026-03-01") == 1
    assert days.count("2026-03-02") == 5


def test_a_day_in_the_future_does_not_end_the_present_one(small_log: Any) -> None:
    """Or every look would merge a large file with one of a single commit."""
    future = NOON.replace(year=2099)
    small_log.append([{"lsn": 990, "committed_at": future}])
    small_log.commit_each(5)
    assert _compact_all(small_log) == 0


def test_large_tables_have_files_and_row_groups_to_themselves(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LARGE_TABLE_ROWS", 20)
    monkeypatch.setattr("pgtide.log.compacted.FILE_ROWS", 50)
    for lsn in range(1000, 1040):
        small_log.append(
            [{"lsn": lsn, "seq": s, "table": t} for s, t in enumerate(["a", "b", "b"])]
            + [{"lsn": lsn, "seq": 3, "table": f"small{lsn % 5}"}]
        )
    positions = small_log.positions()
    _compact_all(small_log, everything=True)
    assert small_log.positions() == positions
    groups, files = [], []
    for file in small_log.open().snapshot().files:
        parquet = pq.ParquetFile(small_log.changes.local / file.path)
        tables = [
            set(parquet.read_row_group(i, ["table"]).column(0).to_pylist())
            for i in range(parquet.num_row_groups)
        ]
        groups += tables
        files.append(set().union(*tables))
    assert {"a"} in groups
    assert {"b"} in groups
    assert {f"small{i}" for i in range(5)} in groups
    assert not any(len(group) > 1 and group & {"a", "b"} for group in groups)
    assert {"b"} in files


def test_the_number_of_files_stays_small(small_log: Any) -> None:
    """Planned only: a day of 20 000 commits leaves few files, each row rewritten a few times."""
    snapshot = small_log.open().snapshot()
    files: list[DataFile] = []
    rewritten = peak = 0
    for number in range(20_000):
        here = Position(Lsn(1000 + number))
        files.append(DataFile(str(number), 5_000, date(2026, 3, 1), 0, 200, here, here, None))
        if number % 10:
            continue
        while run := plan(replace(snapshot, files=tuple(files)), Position(Lsn(10**9))):
            old = [file for unit in run for file in unit.files]
            merged = replace(
                old[0],
                size=sum(f.size for f in old),
                rows=sum(f.rows for f in old),
                high=old[-1].high,
            )
            files = sorted({*files, merged} - set(old), key=lambda file: file.low)
            rewritten += merged.rows
        peak = max(peak, len(files))
    assert peak < 80
    assert rewritten < 5 * 200 * 20_000


def test_two_compactions_at_once_do_not_double_rows(small_log: Any) -> None:
    small_log.commit_each(32)
    first, second = open_table(small_log.changes), open_table(small_log.changes)
    end = _end(small_log)
    assert compact(small_log.changes, first, end) == 32
    assert compact(small_log.changes, second, end) == 0
    assert len(small_log.positions()) == 64
    assert compact(small_log.changes, second, end) == 0, "it has seen what the first one did"


def test_a_writer_that_has_not_seen_the_compaction_goes_on(small_log: Any) -> None:
    small_log.commit_each(32)
    table = open_table(small_log.changes)
    small_log.append([{"lsn": 3000}])
    compact(small_log.changes, table, Position(Lsn(3000)))
    small_log.append([{"lsn": 3010}])
    assert len(small_log.positions()) == 66


def test_no_run_goes_over_its_limits(small_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "RUN_ROWS", 20)
    small_log.commit_each(40)
    snapshot = read_snapshot(open_table(small_log.changes))
    run = plan(snapshot, snapshot.end, everything=True)
    assert run is not None
    assert sum(file.rows for unit in run for file in unit.files) == 20
    _compact_all(small_log, everything=True)
    assert sorted(file.rows for file in small_log.open().snapshot().files) == [20, 20, 20, 20]


def test_rows_around_midnight_stay_in_order(small_log: Any, day_later: Any) -> None:
    late = day_later - timedelta(hours=13)
    small_log.append([{"lsn": 1000}, {"lsn": 1010, "committed_at": day_later}])
    small_log.append(
        [{"lsn": 1020, "committed_at": late}, {"lsn": 1030, "committed_at": day_later}]
    )
    before = small_log.positions()
    _compact_all(small_log, everything=True)
    assert small_log.positions() == before == [(1000, 0), (1010, 0), (1020, 0), (1030, 0)]


def test_files_of_two_days_do_not_overlap(small_log: Any, day_later: Any) -> None:
    """A stream may take them in two batches: a clock that goes back must not mix them."""
    times = [day_later - timedelta(days=1), day_later, day_later - timedelta(days=1), day_later]
    rows = [{"lsn": 1000 + 10 * n, "committed_at": at} for n, at in enumerate(times)]
    small_log.append(rows)
    files = sorted(small_log.open().snapshot().files, key=lambda file: file.day)
    assert [(file.low.lsn, file.high.lsn) for file in files] == [(1000, 1000), (1010, 1030)]


def test_tables_filled_one_after_the_other_are_merged_once(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files cut by table would not overlap then, and be merged for ever."""
    monkeypatch.setattr(compaction, "LARGE_TABLE_ROWS", 10)
    monkeypatch.setattr("pgtide.log.compacted.FILE_ROWS", 10)
    small_log.commit_each(10, table="a")
    small_log.commit_each(10, first=2000, table="b")
    table, end = open_table(small_log.changes), _end(small_log)
    assert compact(small_log.changes, table, end, everything=True) == 20
    assert compact(small_log.changes, table, end, everything=True) == 0


def _memory(log: Any) -> list[list[tuple[int, int]]]:
    """For each file, rows and bytes in memory of its row groups."""
    return [
        [(piece.rows, piece.read().nbytes) for piece in open_pieces(log.changes, file)]
        for file in log.open().snapshot().files
    ]


def test_rows_that_compress_well_stay_within_memory(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.log.order.WINDOW_BYTES", 500_000)
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 500_000)
    monkeypatch.setattr(compaction, "RUN_MEMORY", 2_000_000)
    document = ["1", "x" * 200_000, None]
    for lsn in range(1000, 1300, 10):
        small = [{"lsn": lsn, "seq": seq, "table": "small"} for seq in range(1, 200)]
        small_log.append([{"lsn": lsn, "after": document}, *small])
    small_log.append([{"lsn": 2000, "after": ["1", "x" * 2_100_000, None]}])
    small_log.append([{"lsn": 2010, "after": document}])
    positions = small_log.positions()
    assert _compact_all(small_log, everything=True) == 30
    assert small_log.positions() == positions
    files = _memory(small_log)
    assert max(size for groups in files for rows, size in groups if rows > 1) < 550_000
    totals = [sum(size for _, size in groups) for groups in files]
    assert sum(total > 2_000_000 for total in totals) == 1, "what is larger is left alone"
    assert len(files) < 8


def test_the_writer_bounds_row_groups_by_bytes(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.log.writer.ROW_GROUP_BYTES", 500_000)
    sizes = [10, 200_000, 200_000, 200_000, 10, 900_000, 10, 10]
    rows = [{"lsn": 1000, "seq": n, "after": ["x" * size]} for n, size in enumerate(sizes)]
    small_log.append(rows)
    (groups,) = _memory(small_log)
    assert [rows for rows, _ in groups] == [3, 2, 1, 2]


def test_a_missing_data_file_is_named(small_log: Any) -> None:
    small_log.commit_each(3)
    file = small_log.open().snapshot().files[1]
    (small_log.changes.local / file.path).unlink()
    with pytest.raises(LogError, match="missing") as caught:
        _compact_all(small_log, everything=True)
    assert file.path in caught.value.detail
    assert "backup" in caught.value.hint


def test_a_file_that_another_compaction_replaced_is_no_damage(small_log: Any) -> None:
    small_log.commit_each(3)
    old = open_table(small_log.changes)
    files = small_log.open().snapshot().files
    _compact_all(small_log, everything=True)
    for file in files:
        (small_log.changes.local / file.path).unlink()
    assert compact(small_log.changes, old, Position(Lsn(10**9)), everything=True) == 0
