"""CSV that Postgres and every other reader takes back as it was."""

from __future__ import annotations

import csv

from pgtide.log.event import UNCHANGED, Event, Row
from pgtide.position import Lsn, Position
from pgtide.shape import Column, Shape
from pgtide.sinks.csv_rows import OWN, csv_header, csv_row

SHAPE = Shape(1, "public", "t", (Column("id", 23), Column("op", 25), Column("op__2", 25)))


def line(op: str, before: Row | None, after: Row | None) -> str:
    at = Position(Lsn(255), 3)
    return csv_row(Event(at, 7, None, op, "public", "t", SHAPE, before, after, None, True))


def test_values_survive() -> None:
    values = ['a,"b"', "two\nlines", "", " edges ", "\\."]
    for value in values:
        text = line("insert", None, {"id": "1", "op": value, "op__2": None})
        (row,) = csv.reader([*text.splitlines(keepends=True)])
        assert row[len(OWN) :] == ["1", value, ""]
    assert line("insert", None, {"id": "1", "op": "", "op__2": None}).endswith(',1,"",\n')


def test_names_are_unique() -> None:
    (names,) = csv.reader([csv_header(SHAPE)])
    assert names == [*OWN, "id", "op__3", "op__2"]
    assert csv_header(None).strip().split(",") == [*OWN]


def test_what_was_not_sent_is_named() -> None:
    unsent = OWN.index("unsent")
    (row,) = csv.reader([line("update", None, {"id": "1", "op": UNCHANGED, "op__2": "x"})])
    assert (row[0], row[unsent], row[-3:]) == ("update", '["op"]', ["1", "", "x"])
    (row,) = csv.reader([line("delete", {"id": "1"}, None)])
    assert (row[0], row[unsent], row[-3:]) == ("delete", '["op", "op__2"]', ["1", "", ""])
    (row,) = csv.reader([line("truncate", None, None)])
    assert (row[unsent], row[-3:]) == ("", ["", "", ""])
