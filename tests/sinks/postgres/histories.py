"""What holds for any history: it is what the log says, event by event."""

from __future__ import annotations

import json
import re
from typing import Any

from pgtide.log.event import UNCHANGED, Event
from pgtide.shape import Shape
from tests.sinks.postgres.replicas import PIPELINE, Replica

EVENTS = ("insert", "update", "delete", "truncate", "read")
_TABLES = """
SELECT format('%I.%I', relnamespace::regnamespace, relname), obj_description(oid, 'pg_class')
FROM pg_class WHERE obj_description(oid, 'pg_class') LIKE 'pgtide history %'
"""
_COLUMNS = """
SELECT attname::text, col_description(attrelid, attnum) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0
"""


def histories(replica: Replica) -> dict[int, str]:
    """Tables by the relation whose changes they have."""
    found: dict[int, str] = {}
    for name, comment in replica.target.execute(_TABLES):
        owner = json.loads(comment.removeprefix("pgtide history "))
        assert owner["pipeline"] == PIPELINE
        assert owner["relation"] not in found
        found[owner["relation"]] = name
    return found


def check_equals_log(replica: Replica) -> None:
    """Every event is there once, each of its values in one column of that attnum, no other has."""
    shapes = replica.captured.log.shapes().values()
    wanted: dict[int, list[Event]] = {}
    for event in replica.captured.events(*EVENTS):
        assert event.shape is not None
        wanted.setdefault(event.shape.home, []).append(event)
    tables = histories(replica)
    assert wanted.keys() <= tables.keys()
    for relation, table in tables.items():
        rows, attnums = _rows(replica, table)
        assert len(rows) == len(wanted.get(relation, []))
        root = [shape for shape in shapes if shape.oid == relation]
        for event in wanted.get(relation, []):
            row = rows[str(event.position.lsn), event.position.seq]
            assert _values(row, attnums) == _expected(event, root), (table, event.position)
            assert (row["_pgtide_op"], row["_pgtide_xid"]) == (event.op, event.xid)
            assert _unchanged(row) == _not_sent(event)


def _rows(
    replica: Replica, table: str
) -> tuple[dict[tuple[str, int], dict[str, Any]], dict[str, int]]:
    """Rows by position, their values as texts; attnums by column."""
    attnums = {}
    for name, comment in replica.target.execute(_COLUMNS, [table]):
        if match := re.search(r"attnum (\d+), ", comment or ""):
            attnums[name] = int(match[1])
    own = ("op", "xid", "unchanged")
    fields = [f"_pgtide_{name}" for name in own]
    fields += [f'"{name}"::text' for name in attnums]
    query = f"SELECT _pgtide_lsn::text, _pgtide_seq, {', '.join(fields)} FROM {table}"
    names = [*(f"_pgtide_{name}" for name in own), *attnums]
    found = replica.target.execute(query)
    return {(lsn, seq): dict(zip(names, row, strict=True)) for lsn, seq, *row in found}, attnums


def _values(row: dict[str, Any], attnums: dict[str, int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, attnum in attnums.items():
        if row[name] is not None:
            assert attnum not in found, "a value is in one column"
            found[attnum] = row[name]
    return found


def _expected(event: Event, root: list[Shape]) -> dict[int, str]:
    sent = event.before if event.op == "delete" else event.after
    assert event.shape is not None
    attnums = {column.name: column.attnum for column in event.shape.columns}
    if event.shape.root_oid:  # whose columns may have other numbers
        attnums = {column.name: column.attnum for shape in root for column in shape.columns}
    values = {attnums[name]: text for name, text in (sent or {}).items()}
    return {n: text for n, text in values.items() if n is not None and isinstance(text, str)}


def _unchanged(row: dict[str, Any]) -> int:
    return len(row["_pgtide_unchanged"] or ())


def _not_sent(event: Event) -> int:
    assert event.shape is not None
    if event.op == "delete":
        return len(event.shape.columns) - len(event.before or {})
    return sum(value is UNCHANGED for value in (event.after or {}).values())
