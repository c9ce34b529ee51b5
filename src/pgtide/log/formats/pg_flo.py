"""pg_flo's message, as its stdout, file and webhook sinks write it.

Values as pg_flo decodes them: booleans, integers and floats as JSON, numeric as text, bytea
as base64, dates and timestamps in RFC 3339, jsonb as JSON, arrays of booleans, numbers and
texts as lists, all else as text. A timestamp that RFC 3339 cannot hold (infinite, BC, five
digits of year) stays text, and so do NaN and the infinities. Unchanged TOASTed columns are
left out.

Where the log has other facts: ``LSN`` is the commit LSN. Rows that were read are INSERT with
``NewTuple``. TRUNCATE, MESSAGE and SWEEP are types that pg_flo does not have; a message and a
sweep carry what they say in ``NewTuple``.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime
from typing import Any

from pgtide import oids
from pgtide.log.event import UNCHANGED, Event, Row
from pgtide.log.formats import texts
from pgtide.log.source import LogSource
from pgtide.shape import Shape

_RFC_3339 = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d(?:\.\d+)?)(?:\+00)?)?")
_DECODED_ARRAYS = frozenset(
    {oids.BOOL, oids.INT2, oids.INT4, oids.INT8, oids.FLOAT4, oids.FLOAT8, oids.TEXT, oids.VARCHAR}
)


def format_event(event: Event, source: LogSource, now: datetime) -> dict[str, Any]:
    """The event as a ``CDCMessage`` in JSON."""
    message: dict[str, Any] = {
        "Type": "INSERT" if event.op == "read" else event.op.upper(),
        "Schema": event.schema or "",
        "Table": event.table or "",
        "ReplicationKey": _replication_key(event.shape),
        "LSN": str(event.position.lsn),
        "EmittedAt": now.isoformat().replace("+00:00", "Z"),
    }
    new = _ddl(event) if event.op == "ddl" else _tuple(event.after, event.shape)
    if new is None and event.op in ("message", "sweep"):
        new = event.payload
    if new is not None:
        message["NewTuple"] = new
    old = _tuple(event.before, event.shape)
    if old is not None:
        message["OldTuple"] = old
    return message


def _replication_key(shape: Shape | None) -> dict[str, Any]:
    if shape is None:
        return {"Type": "", "Columns": None}
    if shape.replica_identity == "f":
        return {"Type": "FULL", "Columns": [column.name for column in shape.columns]}
    primary = [column.name for column in shape.columns if column.key]
    if shape.replica_identity == "d" and primary:
        return {"Type": "PRIMARY KEY", "Columns": primary}
    unique = [column.name for column in shape.columns if column.identity]
    return {"Type": "UNIQUE", "Columns": unique} if unique else {"Type": "", "Columns": None}


def _tuple(row: Row | None, shape: Shape | None) -> dict[str, Any] | None:
    if row is None or shape is None:
        return None
    return {
        column.name: _value(row[column.name], column.type_oid)
        for column in shape.columns
        if column.name in row and row[column.name] is not UNCHANGED
    }


def _value(text: Any, type_oid: int) -> Any:
    if text is None:
        return None
    element = oids.ARRAY_ELEMENTS.get(type_oid)
    if element in _DECODED_ARRAYS:
        items = texts.parse_array(text)
        return text if items is None else [_value(item, element or 0) for item in items]
    if type_oid == oids.BOOL:
        return text == "t"
    if type_oid in oids.INTEGERS - {oids.OID}:
        return int(text)
    if type_oid in oids.FLOATS:
        return text if text in ("NaN", "Infinity", "-Infinity") else float(text)
    if type_oid == oids.BYTEA:
        return base64.b64encode(bytes.fromhex(text[2:])).decode()
    if type_oid == oids.JSONB:
        return _json(text)
    if type_oid in (oids.DATE, oids.TIMESTAMP, oids.TIMESTAMPTZ):
        return _moment(text)
    return text


def _json(text: str) -> Any:
    """The parsed value; its text where Python's parser has limits that Postgres has not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _moment(text: str) -> str:
    match = _RFC_3339.fullmatch(text)
    return text if match is None else f"{match[1]}T{match[2] or '00:00:00'}Z"


def _ddl(event: Event) -> dict[str, Any]:
    payload = event.payload or {}
    objects = payload.get("objects") or payload.get("dropped") or [{}]
    return {
        "event_type": "ddl_command_end",
        "object_type": objects[0].get("type", ""),
        "object_identity": objects[0].get("identity", ""),
        "ddl_command": payload.get("statement") or payload.get("query"),
        "created_at": payload.get("statement_at"),
    }
