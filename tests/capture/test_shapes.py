"""Which shape holds where, also for transactions that come a second time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pgtide.errors import LogFenced, LogMissing
from pgtide.log.schema import SHAPES
from pgtide.log.shapes import MOST_FILES, ShapeStore, create_shapes
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.shape import Column, Shape

START = Lsn(1000)
TABLE = Shape(7, "public", "t", (Column("a", 25, attnum=1),), since=START)


def renamed(name: str, since: int) -> Shape:
    return replace(TABLE, columns=(Column(name, 25, attnum=1),), since=Lsn(since))


@pytest.fixture
def log(tmp_path: Path) -> Storage:
    storage = Storage(str(tmp_path))
    create_shapes(storage, [TABLE])
    return storage


def test_the_baseline_holds_before_a_transaction_at_the_very_start(log: Storage) -> None:
    store = ShapeStore(log, START)
    assert store.current[7].columns[0].name == "a"
    store.assign(renamed("b", START))
    store.persist()
    assert ShapeStore(log, START).current[7].columns[0].name == "a"
    assert ShapeStore(log, Lsn(START + 1)).current[7].columns[0].name == "b"


def test_a_transaction_that_comes_again_gets_the_same_shapes(log: Storage) -> None:
    first = ShapeStore(log, START)
    ids = [first.assign(renamed(name, 2000)).id for name in ("b", "c", "a")]
    first.persist()
    again = ShapeStore(log, START)
    assert again.assign(renamed("a", 2000)).id == 1, "as it was before the transaction"
    assert [again.assign(renamed(name, 2000)).id for name in ("b", "c", "a")] == ids
    assert again.assign(renamed("b", 3000)).id == max(ids) + 1, "another transaction"
    again.persist()
    assert sorted(ShapeStore(log, Lsn(4000)).by_id) == [1, *ids, max(ids) + 1]


def test_two_writers_of_shapes(log: Storage) -> None:
    first, second = ShapeStore(log, START), ShapeStore(log, START)
    first.assign(renamed("b", 2000))
    second.assign(renamed("c", 2000))
    first.persist()
    with pytest.raises(LogFenced):
        second.persist()


def test_a_log_without_shapes(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        ShapeStore(Storage(str(tmp_path)), START)


def test_many_changes_leave_few_files(log: Storage) -> None:
    store = ShapeStore(log, Lsn(8))
    for number in range(60):
        columns = tuple(Column(f"c{n}", 23, attnum=n + 1) for n in range(number % 7 + 1))
        store.assign(Shape(number, "public", f"t{number}", columns, since=Lsn(16 + number)))
        store.persist()
    table = DeltaTable(log.child(SHAPES).root)
    assert len(table.file_uris()) <= MOST_FILES
    assert ShapeStore(log, Lsn(1 << 20)).by_id == store.by_id
