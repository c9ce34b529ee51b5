"""Reading the log back: what it holds, and whether that is what Postgres committed.

Two independent proofs. The counts per table and operation equal the row counts
that the server reported to the shop. And the tables built from the log alone,
keyed by primary key and column number, equal the tables in Postgres.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import sql

from pgtide.demo.workload import TABLES
from pgtide.log.event import UNCHANGED, Event, Row
from pgtide.log.reader import Log
from pgtide.position import Position
from pgtide.postgres.connection import connect
from pgtide.shape import Shape

Key = tuple[Any, ...]
Cells = dict[int, Any]  # by attnum: a renamed column is the same column


@dataclass(frozen=True)
class Findings:
    """What reading the log back gave."""

    counts: Counter[tuple[str, str]]
    transactions: int
    unchanged: int  # values that were not sent because nothing had changed them
    first: Position
    last: Position
    ordered: bool  # positions only grow, and none comes twice
    ddl_first: bool  # no row has a new shape before the command that made it
    shapes: list[Shape]
    rows: dict[str, int]  # of the tables built from the log
    differing: list[str]  # tables that are not what Postgres holds
    summary: dict[str, Any]

    @property
    def events(self) -> int:
        return self.counts.total()


def read_back(log: Log, url: str) -> Findings:
    """Read every event, build the tables, compare them with the source."""
    events = list(log.events())
    positions = [event.position for event in events]
    tables = _build(events)
    with connect(url, application_name="pgtide demo") as connection:
        differing = [name for name in TABLES if _differs(connection, name, tables[name])]
    return Findings(
        counts=Counter((event.table or "", event.op) for event in events),
        transactions=sum(event.last for event in events),
        unchanged=sum(v is UNCHANGED for e in events for v in (e.after or {}).values()),
        first=positions[0],
        last=positions[-1],
        ordered=all(a < b for a, b in pairwise(positions)),
        ddl_first=_ddl_first(events),
        shapes=[shape for shape in log.shapes().values() if shape.table == "customers"],
        rows={name: len(tables[name]) for name in TABLES},
        differing=differing,
        summary=log.summary(),
    )


def _ddl_first(events: Iterable[Event]) -> bool:
    shapes: dict[str, int] = {}
    announced: set[str] = set()
    for event in events:
        if event.table is None:
            continue
        if event.op == "ddl":
            announced.add(event.table)
        elif event.shape is not None:
            known = shapes.get(event.table, event.shape.id)
            if event.shape.id != known and event.table not in announced:
                return False
            shapes[event.table] = event.shape.id
            announced.discard(event.table)
    return True


def _build(events: Iterable[Event]) -> dict[str, dict[Key, Cells]]:
    tables: dict[str, dict[Key, Cells]] = {name: {} for name in TABLES}
    for event in events:
        if event.table is None:
            continue
        rows = tables[event.table]
        if event.op == "ddl":
            _add_columns(event, rows.values())
        if event.shape is None:
            continue
        if event.op == "truncate":
            rows.clear()
            continue
        # The old key is sent with a delete, and with an update that changes it.
        old = rows.pop(_key(event.shape, event.before), {}) if event.before else {}
        if event.after is not None:
            key = _key(event.shape, event.after)
            rows[key] = _cells(event.shape, event.after, rows.get(key, old))
    return tables


def _add_columns(event: Event, rows: Iterable[Cells]) -> None:
    """What rows from before ADD COLUMN hold in the new column; the shop adds numbers only."""
    for item in (event.payload or {}).get("objects", ()):
        for column in item.get("columns", ()):
            if column["missing"]:
                for cells in rows:
                    cells.setdefault(column["attnum"], column["missing"].strip("{}"))


def _key(shape: Shape, row: Row) -> Key:
    return tuple(row[column.name] for column in shape.columns if column.key)


def _cells(shape: Shape, row: Row, known: Cells) -> Cells:
    cells = dict(known)
    for column in shape.columns:
        value = row[column.name]
        if value is not UNCHANGED and column.attnum is not None:
            cells[column.attnum] = value
    return cells


def _differs(
    connection: psycopg.Connection[tuple[Any, ...]], name: str, built: dict[Key, Cells]
) -> bool:
    """Whether a table of Postgres, as texts by column number, is not the one we built."""
    columns = connection.execute(
        "SELECT attnum, attname FROM pg_catalog.pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [f"public.{name}"],
    ).fetchall()
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(c)) for _, c in columns)
    query = sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier("public", name))
    # The key is the first column of every table of the shop.
    found = {row[0]: list(row) for row in connection.execute(query).fetchall()}
    ours = {key[0]: [cells.get(number) for number, _ in columns] for key, cells in built.items()}
    return found != ours
