"""DDL that changes rows without row events: which tables have to be read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgtide.capture.ddl import DdlCommand
from pgtide.capture.ddl_marks import REWRITE_OF_TYPE, SET_LOGGED
from pgtide.log.refreshes import id_of_ddl
from pgtide.position import Lsn
from pgtide.shape import Shape

_OF_TYPES = frozenset({"rename enum value", "alter composite type"})


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A table whose rows are not what events have told."""

    id: str  # the same whenever the command is seen
    table: str
    oid: int
    reasons: tuple[str, ...]
    keyed: bool
    replaces: bool  # rows that targets have may be gone


def rewrites_of(command: DdlCommand, lsn: Lsn, current: Iterable[Shape]) -> Iterator[Rewrite]:
    """The captured tables that a command has changed so; ``current``: as they were before."""
    reasons = command.marks.reasons
    if not reasons:
        return
    after = {layout.oid: layout for layout in command.layouts}
    for before in current:
        shape = after.get(before.oid, before)
        if _concerns(command, shape):
            id = id_of_ddl(lsn, shape.oid)
            # What was deleted while a table was UNLOGGED was never told of.
            replaces = _rekeys(command, before) or SET_LOGGED in reasons
            yield Rewrite(id, shape.name, shape.oid, reasons, bool(shape.keys), replaces)


def is_partition(command: DdlCommand, shape: Shape) -> bool:
    """Whether a command has attached or detached this very table."""
    if command.marks.partition is None:
        return False
    schema, table = command.marks.partition
    return shape.table == table and schema in (None, shape.schema)


def _rekeys(command: DdlCommand, shape: Shape) -> bool:
    """Whether a command may have converted a table's keys to others."""
    keys = {shape.columns[index].name for index in shape.keys}
    touched = not command.marks.complete or not keys.isdisjoint(command.marks.retyped)
    return touched and REWRITE_OF_TYPE in command.marks.reasons


def _concerns(command: DdlCommand, shape: Shape) -> bool:
    if any(rewrite["oid"] == shape.oid for rewrite in command.rewrites):
        return True
    if command.marks.partition is not None:
        return is_partition(command, shape)
    # Of a type the tables are told that store it, also inside of other types.
    stored = not _OF_TYPES.isdisjoint(command.marks.reasons)
    return stored and any(layout.oid == shape.oid for layout in command.layouts)
