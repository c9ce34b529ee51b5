"""How a relation looked before a command, and which of the log's shapes it has after it.

A command tells the columns that a table has afterwards, not which of the log's shapes that is:
a table may look so again later, and those who read it late know all of its shapes. All shapes of
a transaction have its LSN: between two of its commands a table is as the first of them left it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.spark.layout import TableName


@dataclass(frozen=True)
class Told:
    """What a command said of one table."""

    at: Position
    item: Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """What a command may change of a table that holds rows."""

    table: TableName
    columns: Mapping[int | None, str]  # names by attnum
    home: TableName  # whose rules hold for its rows: of a partition, the root

    @property
    def attnums(self) -> frozenset[int | None]:
        return frozenset(self.columns)


@dataclass(frozen=True)
class Change:
    """What a command did to a table."""

    before: Look | None  # None: it was made
    after: Shape  # the last one that looks as the command left it: its key may have come since


class RelationHistories:
    """The shapes of all relations; told the commands of the log, one after the other.

    It has to begin with a transaction: what an earlier batch had of one is to be told as well.
    """

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        self._shapes: dict[int, list[Shape]] = {}
        self._reached: dict[int, tuple[Lsn, Look]] = {}  # by relation: the last command's
        for shape in sorted(shapes.values(), key=lambda shape: shape.id):
            self._shapes.setdefault(shape.oid, []).append(shape)

    def change(self, item: Mapping[str, Any], lsn: Lsn) -> Change | None:
        """The change of a table that a command of a transaction names; None if none is known."""
        history = self._shapes.get(item.get("oid", 0), [])
        after = next((shape for shape in reversed(history) if _is(shape, item)), None)
        if after is None:
            return None
        before = self._before(history, lsn)
        columns = {column["attnum"]: column["name"] for column in item["columns"]}
        look = Look((after.schema, after.table), columns, after.home_name)
        self._reached[after.oid] = lsn, look
        return Change(before, after)

    def _before(self, history: list[Shape], lsn: Lsn) -> Look | None:
        at, look = self._reached.get(history[0].oid, (None, None))
        if at == lsn:
            return look
        shape = next((shape for shape in reversed(history) if shape.since < lsn), None)
        return None if shape is None else _look(shape)


def _look(shape: Shape) -> Look:
    columns = {column.attnum: column.name for column in shape.columns}
    return Look((shape.schema, shape.table), columns, shape.home_name)


def _is(shape: Shape, item: Mapping[str, Any]) -> bool:
    """Whether a shape is what the command's facts describe; what is generated need not be sent."""
    root = (item.get("root") or {}).get("oid", 0)
    told = item.get("schema"), item.get("name"), root
    if (shape.schema, shape.table, shape.root_oid) != told:
        return False
    described = {(c["attnum"], c["name"], c["type_oid"], c["typmod"]) for c in item["columns"]}
    sent = {(c["attnum"], c["name"]) for c in item["columns"] if not c.get("generated")}
    columns = {(c.attnum, c.name, c.type_oid, c.typmod) for c in shape.columns}
    return columns <= described and sent <= {(attnum, name) for attnum, name, *_ in columns}
