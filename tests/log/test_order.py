"""Ordered reading over any layout of files: hypothesis tries to find one that breaks it."""

from __future__ import annotations

import itertools
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtide.config import TablePatterns
from pgtide.log import order
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position

Layout = list[list[tuple[int, int]]]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Unique positions, dealt out to files in any order."""
    positions = draw(
        st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), unique=True, max_size=60)
    )
    files: dict[int, list[tuple[int, int]]] = {}
    for position in positions:
        files.setdefault(draw(st.integers(0, 5)), []).append(position)
    return list(files.values())


_names = itertools.count()


def _write(root: Path, rows: list[tuple[int, int]], group: int, document: int = 0) -> DataFile:
    path = f"{next(_names)}.parquet"
    table = pa.Table.from_pylist(
        [
            {
                "lsn": lsn,
                "seq": seq,
                "schema": "public",
                "table": f"t{lsn % 3}",
                "after": [str(seq)],
                "payload": "x" * document if seq == 0 else None,
            }
            for lsn, seq in rows
        ],
        schema=FILE_SCHEMA,
    )
    pq.write_table(table, root / path, row_group_size=group, use_dictionary=False)
    names = {f"t{lsn % 3}" for lsn, _ in rows}
    return DataFile(
        path=path,
        size=(root / path).stat().st_size,
        day=date(2026, 3, 1),
        logged_at_ms=0,
        rows=len(rows),
        low=Position(Lsn(min(r[0] for r in rows)), min(r[1] for r in rows)),
        high=Position(Lsn(max(r[0] for r in rows)), max(r[1] for r in rows)),
        table=("public", names.pop()) if len(names) == 1 else None,
    )


def _read(root: Path, files: list[DataFile], **options: Any) -> list[tuple[int, int]]:
    read = []
    for batch in order.read_ordered(Storage(str(root)), files, **options):
        assert batch.column("day").unique().to_pylist() == [date(2026, 3, 1)]
        rows = batch.select(["lsn", "seq", "after"]).to_pylist()
        assert all(row["after"] == [str(row["seq"])] for row in rows), "columns stay together"
        read += [(row["lsn"], row["seq"]) for row in rows]
    return read


@given(layout=layouts(), group=st.integers(1, 8), window=st.integers(1, 20), data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_layout_is_read_in_order(
    layout: Layout,
    group: int,
    window: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("files")
    files = [_write(root, rows, group) for rows in layout]
    expected = sorted(itertools.chain.from_iterable(layout))
    start = data.draw(st.tuples(st.integers(0, 13), st.integers(0, 13)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW_ROWS", window)
        assert _read(root, files) == expected
        position = Position(Lsn(start[0]), start[1])
        assert _read(root, files, start=position) == [p for p in expected if p >= start]
        assert _read(root, files, tables=TablePatterns(["t1"])) == [
            p for p in expected if p[0] % 3 == 1
        ]


def test_a_cluster_larger_than_memory_is_read_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interleaved = [[(lsn, 0) for lsn in range(first, 4000, 4)] for first in range(4)]
    files = [_write(tmp_path, rows, 100) for rows in interleaved]
    monkeypatch.setattr(order, "WINDOW_ROWS", 250)
    sizes = [batch.num_rows for batch in order.read_ordered(Storage(str(tmp_path)), files)]
    assert max(sizes) <= 250
    assert _read(tmp_path, files) == [(lsn, 0) for lsn in range(4000)]


def test_parts_of_one_large_transaction_are_read_one_after_the_other(tmp_path: Path) -> None:
    parts = [[(5, seq) for seq in range(first, first + 10)] for first in (20, 0, 10)]
    files = [_write(tmp_path, rows, 10) for rows in parts]
    assert [len(cluster) for cluster in order.clusters(files)] == [1, 1, 1]
    assert _read(tmp_path, files) == [(5, seq) for seq in range(30)]


def test_windows_are_cut_by_the_bytes_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values side by side in the order, in one file each with many small rows."""
    monkeypatch.setattr(order, "WINDOW_BYTES", 1_000_000)
    files = [
        _write(
            tmp_path,
            [(1000 + number, 0), *((number, seq) for seq in range(1, 500))],
            group=500,
            document=300_000,
        )
        for number in range(12)
    ]
    batches = list(order.read_ordered(Storage(str(tmp_path)), files))
    assert sum(batch.num_rows for batch in batches) == 6000
    assert max(batch.nbytes for batch in batches) < 1_100_000
    large = _write(tmp_path, [(2000, 0), (2001, 0), (2002, 1)], group=3, document=2_000_000)
    sizes = [b.num_rows for b in order.read_ordered(Storage(str(tmp_path)), [large])]
    assert sizes == [1, 1, 1], "a row that is larger than a window has one to itself"


def test_the_memory_of_a_row_group_counts_values_that_take_no_room_in_a_file(
    tmp_path: Path,
) -> None:
    rows = pa.Table.from_pylist(
        [{"lsn": lsn, "seq": 0, "after": [None] * 500} for lsn in range(200)], schema=FILE_SCHEMA
    )
    file = _write(tmp_path, [(1, 0)], 1)
    pq.write_table(rows, tmp_path / file.path)
    (piece,) = order.open_pieces(Storage(str(tmp_path)), file)
    assert rows.nbytes < 1.2 * piece.bytes
