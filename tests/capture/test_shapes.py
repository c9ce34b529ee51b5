"""Which shape holds where, also for transactions that come a second time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgtide.errors import LogFenced, LogMissing
from pgtide.log.schema import COLUMN_STRUCT, SHAPES, SHAPES_SCHEMA
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


def test_a_transaction_in_which_a_table_looks_so_again(log: Storage) -> None:
    """Rows between two commands have a shape of their own, and the last one is what holds."""
    names = ["b", "a", "b", "a", "b"]
    first = ShapeStore(log, START)
    ids = [first.assign(renamed(name, 2000)).id for name in names]
    assert ids == [2, 3, 4, 5, 6]
    first.persist()
    assert ShapeStore(log, Lsn(3000)).current[7].columns[0].name == "b"
    again = ShapeStore(log, START)
    assert [again.assign(renamed(name, 2000)).id for name in names] == ids


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


def test_a_log_from_before_base_and_element_types(tmp_path: Path) -> None:
    facts = {"base_oid", "base_typmod", "element_oid"}
    fields = [
        pa.field(COLUMN_STRUCT.field(i).name, COLUMN_STRUCT.field(i).type)
        for i in range(COLUMN_STRUCT.num_fields)
        if COLUMN_STRUCT.field(i).name not in facts
    ]
    index = SHAPES_SCHEMA.get_field_index("columns")
    columns = pa.field("columns", pa.list_(pa.field("element", pa.struct(fields))))
    log = Storage(str(tmp_path))
    schema = SHAPES_SCHEMA.set(index, columns)
    table = DeltaTable.create(log.child(SHAPES).root, schema)
    old = {"shape": 1, "since_lsn": 8, "oid": 7, "schema": "public", "table": "t"}
    root = {"replica_identity": "d", "root_oid": 0, "root_schema": "", "root_table": ""}
    column = {"attnum": 1, "name": "a", "type_oid": 25, "typmod": -1, "type_name": ""}
    flags = {"nullable": True, "key": False, "identity": False, "generated": False}
    row = {**old, **root, "columns": [{**column, **flags}]}
    write_deltalake(table, pa.Table.from_pylist([row], schema=schema), mode="append")
    store = ShapeStore(log, START)
    assert store.current[7].columns == TABLE.columns
    new = Column("d", 16500, attnum=2, base_oid=1231, base_typmod=655366, element_oid=1700)
    store.assign(renamed("b", 2000))
    store.assign(replace(TABLE, columns=(TABLE.columns[0], new), since=Lsn(3000)))
    store.persist()
    shapes = ShapeStore(log, Lsn(4000)).by_id
    assert shapes == store.by_id
    assert shapes[1].columns == TABLE.columns
    assert shapes[3].columns[1] == new
