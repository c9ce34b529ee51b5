"""Commands tell columns; which shapes they lead from and to follows from their order."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.pipeline.relation_histories import RelationHistories
from pgtide.position import Lsn
from pgtide.shape import Column, Shape

OID = 7


def shape(id_: int, since: int, *columns: str, table: str = "t", root: int = 0) -> Shape:
    found = tuple(Column(name, 23, attnum=ord(name)) for name in columns)
    return Shape(OID, "public", table, found, id=id_, since=Lsn(since), root_oid=root)


def command(*columns: str, table: str = "t") -> dict[str, Any]:
    facts = {"type_oid": 23, "typmod": -1}
    described = [{"attnum": ord(name), "name": name, **facts} for name in columns]
    return {"oid": OID, "schema": "public", "name": table, "columns": described}


@pytest.mark.parametrize("lsns", [(10, 20, 30, 40, 50), (10, 20, 20, 20, 20), (9,) * 5])
def test_a_table_looks_as_it_did_before(lsns: tuple[int, ...]) -> None:
    """Made, a column added, something that is no column, another added and dropped again."""
    looks = ["a", "ab", "ab", "abc", "ab"]
    made = [shape(n, lsn, *look) for n, (lsn, look) in enumerate(zip(lsns, looks, strict=True), 1)]
    histories = RelationHistories({shape.id: shape for shape in made})
    for number, (lsn, look) in enumerate(zip(lsns, looks, strict=True)):
        change = histories.change(command(*look), Lsn(lsn))
        assert change is not None
        assert change.before == (made[number - 1] if number else None)
        assert change.after == made[number]
        assert change.newest == made[{"a": 0, "ab": 4, "abc": 3}[look]]


def test_a_command_that_changes_nothing() -> None:
    shapes = [shape(1, 5, "a"), shape(2, 10, "a", table="u"), shape(3, 30, "a", table="u")]
    histories = RelationHistories({shape.id: shape for shape in shapes})
    change = histories.change(command("a", table="u"), Lsn(20))
    assert change is not None
    assert change.before == change.after == shapes[1]
    assert histories.change(command("b"), Lsn(20)) is None
    assert histories.change({**command("a"), "oid": 8}, Lsn(20)) is None


def test_a_table_before_it_was_attached() -> None:
    alone, attached = shape(1, 10, "a"), shape(2, 20, "a", root=99)
    histories = RelationHistories({1: alone, 2: attached})
    found = [histories.change(command("a"), Lsn(lsn)) for lsn in (10, 20)]
    assert [(c.after, c.newest) for c in found if c] == [(alone, alone), (attached, attached)]
