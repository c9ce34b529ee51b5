"""Which shape a relation had before a command, and which one after it.

A command tells the columns that a table has afterwards, not which of the log's shapes that is:
a table may look so again later, and those who read it late know all of its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgtide.position import Lsn
from pgtide.shape import Shape


@dataclass(frozen=True)
class Change:
    """What a command did to a table."""

    before: Shape | None  # None: it was made
    after: Shape  # the same as before, if the command changed nothing that a shape tells
    newest: Shape  # the last one that looks the same: its key may have come since


class RelationHistories:
    """The shapes of all relations; asked about the commands of a batch, one after the other."""

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        self._shapes: dict[int, list[Shape]] = {}
        self._reached: dict[int, Shape] = {}  # by relation, as of the last command that named it
        for shape in sorted(shapes.values(), key=lambda shape: shape.id):
            self._shapes.setdefault(shape.oid, []).append(shape)

    def change(self, item: Mapping[str, Any], lsn: Lsn) -> Change | None:
        """The change of a table that a command of a transaction names; None if none is known."""
        history = self._shapes.get(item.get("oid", 0), [])
        alike = [shape for shape in history if _is(shape, item)]
        if not alike:
            return None
        before = self._before(history, lsn)
        new = (s for s in alike if s.since <= lsn and (before is None or s.id > before.id))
        after = next(new, None) or (before if before in alike else alike[-1])
        self._reached[after.oid] = after
        newest = next(s for s in reversed(alike) if s.root_oid == after.root_oid)
        return Change(before, after, newest)

    def _before(self, history: list[Shape], lsn: Lsn) -> Shape | None:
        """The shape when the command came: all those of a transaction have its LSN."""
        reached = self._reached.get(history[0].oid)
        if reached is not None and reached.since == lsn:
            return reached
        return next((shape for shape in reversed(history) if shape.since < lsn), None)


def _is(shape: Shape, item: Mapping[str, Any]) -> bool:
    """Whether a shape is what the command's facts describe; what is generated need not be sent."""
    if (shape.schema, shape.table) != (item.get("schema"), item.get("name")):
        return False
    described = {(c["attnum"], c["name"], c["type_oid"], c["typmod"]) for c in item["columns"]}
    sent = {(c["attnum"], c["name"]) for c in item["columns"] if not c.get("generated")}
    columns = {(c.attnum, c.name, c.type_oid, c.typmod) for c in shape.columns}
    return columns <= described and sent <= {(attnum, name) for attnum, name, *_ in columns}
