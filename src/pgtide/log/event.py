"""Events: the rows of the log as typed Python objects.

``before`` and ``after`` map column names to Postgres texts. A value is a ``str``,
``None`` for SQL NULL, or ``UNCHANGED`` for a TOASTed value that the server did not
send because the statement did not change it. A column that was not sent at all is
not in the mapping: ``before`` holds the replica identity and nothing else, since
the NULLs of an old key tuple do not mean NULL.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

from pgtide.errors import LogError
from pgtide.position import Lsn, Position
from pgtide.shape import Shape

if TYPE_CHECKING:
    import pyarrow as pa


class Unchanged(enum.Enum):
    """The type of ``UNCHANGED``; an enum, so that pickling keeps it the one object it is."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"

    __str__ = __repr__

    def __bool__(self) -> NoReturn:
        # Neither answer would be right, and `value or default` would invent one.
        raise TypeError("UNCHANGED is neither true nor false: compare with `is UNCHANGED`")


UNCHANGED: Final = Unchanged.UNCHANGED

Value: TypeAlias = str | Literal[Unchanged.UNCHANGED] | None
Row: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log, at its position in the total order."""

    position: Position
    xid: int | None
    committed_at: datetime | None
    op: str
    schema: str | None
    table: str | None
    shape: Shape | None
    before: Row | None
    after: Row | None
    payload: dict[str, Any] | None
    last: bool


_COLUMNS = (
    *("lsn", "seq", "xid", "committed_at", "op", "schema", "table", "shape"),
    *("before", "after", "unchanged", "payload", "last"),
)


def read_events(batch: pa.RecordBatch, shapes: Mapping[int, Shape]) -> Iterator[Event]:
    """The rows of one batch of the log as events; ``shapes`` knows every id in it."""
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    for lsn, seq, xid, at, op, schema, table, shape_id, before, after, un, payload, last in zip(
        *columns, strict=True
    ):
        position = Position(Lsn(lsn), seq)
        shape = None if shape_id is None else shapes[shape_id]
        yield Event(
            position=position,
            xid=xid,
            committed_at=at,
            op=op,
            schema=schema,
            table=table,
            shape=shape,
            before=None if before is None else _before(before, shape, position),
            after=None if after is None else _after(after, un, shape, position),
            payload=None if payload is None else json.loads(payload),
            last=bool(last),
        )


def _before(texts: list[str | None], shape: Shape | None, position: Position) -> Row:
    columns = _layout(texts, shape, position).columns
    return {
        column.name: text
        for column, text in zip(columns, texts, strict=True)
        if column.identity or text is not None
    }


def _after(
    texts: list[str | None], unchanged: list[int] | None, shape: Shape | None, position: Position
) -> Row:
    columns = _layout(texts, shape, position).columns
    row: dict[str, Value] = {c.name: text for c, text in zip(columns, texts, strict=True)}
    for index in unchanged or ():
        row[columns[index].name] = UNCHANGED
    return row


def _layout(texts: list[str | None], shape: Shape | None, position: Position) -> Shape:
    if shape is None or len(shape.columns) != len(texts):
        raise LogError(
            "a row of the log does not fit its shape",
            detail=f"The row at {position} has {len(texts)} values, its shape "
            f"{'is missing' if shape is None else f'has {len(shape.columns)} columns'}.",
            hint="The log is damaged: restore it from a backup or start a new one.",
        )
    return shape
