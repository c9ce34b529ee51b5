"""Commands tell columns; which shapes they lead from and to follows from their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgtide.pipeline.census import Census, Mark, steps_of
from pgtide.pipeline.cutting import Count
from pgtide.pipeline.relation_histories import Change, Look, RelationHistories, Told
from pgtide.pipeline.steps import Reshaped, position_of
from pgtide.position import Lsn, Position
from pgtide.shape import Column, Shape

OID = 7


def shape(id_: int, since: int, *columns: str, table: str = "t", root: int = 0) -> Shape:
    found = tuple(Column(name, 23, attnum=ord(name)) for name in columns)
    return Shape(OID, "public", table, found, id=id_, since=Lsn(since), root_oid=root)


def command(*columns: str, table: str = "t", root: int = 0) -> dict[str, Any]:
    facts = {"type_oid": 23, "typmod": -1}
    described = [{"attnum": ord(name), "name": name, **facts} for name in columns]
    within = {"oid": root, "schema": "public", "table": "r"} if root else None
    return {"oid": OID, "schema": "public", "name": table, "columns": described, "root": within}


def look(columns: str, table: str = "t") -> Look:
    name = ("public", table)
    return Look(name, {ord(column): column for column in columns}, name)


@pytest.mark.parametrize("lsns", [(10, 20, 30, 40, 50), (10, 20, 20, 20, 20), (9,) * 5])
def test_a_table_looks_as_it_did_before(lsns: tuple[int, ...]) -> None:
    """Made, a column added, something that is no column, another added and dropped again."""
    looks = ["a", "ab", "ab", "abc", "ab"]
    made = [shape(n, lsn, *look) for n, (lsn, look) in enumerate(zip(lsns, looks, strict=True), 1)]
    histories = RelationHistories({shape.id: shape for shape in made})
    for number, (lsn, now) in enumerate(zip(lsns, looks, strict=True)):
        change = histories.change(command(*now), Lsn(lsn))
        assert change is not None
        assert change.before == (look(looks[number - 1]) if number else None)
        assert change.after == made[{"a": 0, "ab": 4, "abc": 3}[now]]


def test_a_look_that_comes_and_goes_in_a_transaction_and_comes_again_later() -> None:
    """Whoever reads late knows the shape of the later one too: it is none of the transaction's."""
    names = ["t", "u", "v", "t", "u", "u"]
    lsns = [10, 20, 20, 20, 20, 30]
    shapes = {
        n: shape(n, lsn, "a", table=name)
        for n, (lsn, name) in enumerate(zip(lsns, names, strict=True), 1)
    }
    histories = RelationHistories(shapes)
    changes = [histories.change(command("a", table=name), Lsn(20)) for name in names[1:5]]
    assert [c.before for c in changes if c] == [look("a", name) for name in names[:4]]


def test_a_command_that_changes_nothing() -> None:
    shapes = [shape(1, 5, "a"), shape(2, 10, "a", table="u"), shape(3, 30, "a", table="u")]
    histories = RelationHistories({shape.id: shape for shape in shapes})
    change = histories.change(command("a", table="u"), Lsn(20))
    assert change == Change(look("a", "u"), shapes[2])
    assert histories.change(command("b"), Lsn(20)) is None
    assert histories.change({**command("a"), "oid": 8}, Lsn(20)) is None


def test_a_table_before_it_was_attached() -> None:
    alone, attached = shape(1, 10, "a"), shape(2, 20, "a", root=99)
    histories = RelationHistories({1: alone, 2: attached})
    found = [
        histories.change(command("a", root=root), Lsn(lsn)) for lsn, root in ((10, 0), (20, 99))
    ]
    assert [c.after for c in found if c] == [alone, attached]


@pytest.mark.parametrize("told", [0, 1, 2])
def test_a_transaction_of_which_a_batch_has_the_rest(told: int) -> None:
    """What its commands do is the same, wherever the batch begins."""
    shapes = {1: shape(1, 5, "a"), 2: shape(2, 20, "a", "b"), 3: shape(3, 20, "a", "b", table="u")}
    shapes[4] = shape(4, 20, "a", "b", "c", table="u")
    items = [command("a", "b"), command("a", "b", table="u"), command("a", "b", "c", table="u")]
    for item in items:
        for column in item["columns"]:
            column["missing"] = None if column["name"] == "a" else "{5}"
    marks = [
        Mark(Position(Lsn(20), 2 * n), "ddl", None, {"objects": [i]}) for n, i in enumerate(items)
    ]
    whole = steps_of(_census(marks), shapes)
    assert [step.added for step in whole if isinstance(step, Reshaped)] == [
        {ord("b"): "5"},
        {},
        {ord("c"): "5"},
    ]
    rest = _census(marks[told:])
    assert rest.interrupted == (frozenset({OID}) if told else frozenset())
    earlier = [Told(mark.at, item) for mark, item in zip(marks, items, strict=True)]
    wanted = [step for step in whole if position_of(step) >= rest.low]
    assert steps_of(rest, shapes, earlier[:told]) == wanted
    assert steps_of(rest, shapes, earlier) == wanted, "a census may be taken of more"


def test_what_older_rows_have_in_new_columns() -> None:
    """NULL where no default is told, unless rows were written anew or columns had no numbers."""
    shapes = {1: shape(1, 5, "a"), 2: shape(2, 20, "a", "b", "c")}
    item = command("a", "b", "c")
    for column in item["columns"]:
        column["missing"] = "{5}" if column["name"] == "b" else None

    def added(**facts: Any) -> Any:
        marks = [Mark(Position(Lsn(20)), "ddl", None, {"objects": [item], **facts})]
        (step,) = (s for s in steps_of(_census(marks), shapes) if isinstance(s, Reshaped))
        return step.added

    assert added() == {ord("b"): "5", ord("c"): None}
    assert added(rewrites=[{"oid": OID, "reasons": ["default"]}]) == {ord("b"): "5"}
    (column,) = shapes[1].columns
    shapes[1] = replace(shapes[1], columns=(replace(column, attnum=None),))
    assert added() == {ord("b"): "5"}


def _census(marks: list[Mark]) -> Census:
    count = Count(None, "ddl", len(marks), marks[0].at, marks[-1].at, old_rows=False, unsent=())
    return Census((count,), tuple(marks), None)
