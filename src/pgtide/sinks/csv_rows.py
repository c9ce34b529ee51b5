"""Events as CSV: a header, and a line per event, values as Postgres prints them.

Nine columns of pgtide's come first, then those of the row: the new one, of a delete what
was sent of the old one. As in Postgres's own CSV nothing between two commas is NULL and
``""`` is the empty text. ``unsent`` names the columns whose value is not known, as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from pgtide.log.event import UNCHANGED, Event
from pgtide.shape import Shape

OWN = ("op", "lsn", "seq", "xid", "committed_at", "schema", "table", "unsent", "payload")
_TO_QUOTE = re.compile(r'[",\r\n]|^\s|\s$|^\\\.$')


def csv_header(shape: Shape | None) -> str:
    """The names; of events that belong to no row only pgtide's."""
    return csv_line((*OWN, *column_names(shape)))


def column_names(shape: Shape | None) -> list[str]:
    """Names of a row's columns, with a number behind those that are pgtide's already."""
    names = [column.name for column in shape.columns] if shape else []
    taken = {*OWN, *names}
    result = []
    for name in names:
        new, number = name, 1
        while new in OWN or (new != name and new in taken):
            number += 1
            new = f"{name}__{number}"
        result.append(new)
    return result


def csv_row(event: Event) -> str:
    """One event."""
    columns = event.shape.columns if event.shape else ()
    row = event.before if event.op == "delete" else event.after
    values: list[str | None] = []
    unsent = []
    for column in columns:
        value = None if row is None else row.get(column.name, UNCHANGED)
        if value is UNCHANGED:
            unsent.append(column.name)
            values.append(None)
        else:
            values.append(value)
    own = (
        event.op,
        str(event.position.lsn),
        str(event.position.seq),
        None if event.xid is None else str(event.xid),
        None if event.committed_at is None else event.committed_at.isoformat(),
        event.schema,
        event.table,
        json.dumps(unsent, ensure_ascii=False) if unsent else None,
        None if event.payload is None else json.dumps(event.payload, ensure_ascii=False),
    )
    return csv_line((*own, *values))


def csv_line(values: Iterable[str | None]) -> str:
    """Texts and NULLs, as a line."""
    return ",".join(map(_quoted, values)) + "\n"


def _quoted(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or _TO_QUOTE.search(value):
        return '"' + value.replace('"', '""') + '"'
    return value
