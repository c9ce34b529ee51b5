"""pgstream's event (``wal.Data``): what its stdout, Kafka and webhook targets carry.

Values are as wal2json prints them: booleans, integers and floats as JSON, NaN and the
infinities as null, bytea as pgstream decodes it (base64 in JSON), all else as text. A
numeric is a JSON number where a double holds it exactly and text where it does not: what is
printed is never rounded. Unchanged TOASTed columns are left out.

Where the log has other facts: ``lsn`` is the commit LSN; ids are built from the relation's
oid instead of an xid that pgstream's own tables hand out, so ``schema_id`` is null. DDL is
the message ``pgstream.ddl`` with the fields of version 1, but for ``unique`` of a column, which
the log does not know; a sweep is ``pgtide.sweep``.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

from pgtide import oids
from pgtide.log.event import UNCHANGED, Event, Row
from pgtide.log.formats import texts
from pgtide.log.source import LogSource
from pgtide.shape import Column, Shape

_ACTIONS = {"insert": "I", "update": "U", "delete": "D", "truncate": "T", "read": "I"}
_IDENTITIES = {"a": "ALWAYS", "d": "BY DEFAULT"}


def format_event(event: Event, source: LogSource, now: datetime) -> dict[str, Any]:
    """The event as ``wal.Data``."""
    action = _ACTIONS.get(event.op, "M")
    data: dict[str, Any] = {
        "action": action,
        "timestamp": _timestamp(event, now),
        "lsn": "0/0" if event.op == "read" else str(event.position.lsn),
        "schema": event.schema or "",
        "table": event.table or "",
        "columns": _columns(event.after, event.shape),
        "identity": _identity(event),
        "metadata": _metadata(event.shape),
    }
    if event.xid is not None:
        data["xid"] = event.xid
    return data | _message(event) if action == "M" else data


def _timestamp(event: Event, now: datetime) -> str:
    moment = event.committed_at or now
    if event.op == "read":
        return moment.isoformat().replace("+00:00", "Z")
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + "+00"


def _columns(row: Row | None, shape: Shape | None) -> list[dict[str, Any]] | None:
    if row is None or shape is None:
        return None
    return [
        {
            "id": _column_id(shape, column),
            "name": column.name,
            "type": column.type_name,
            "value": _value(row[column.name], column.type_oid),
        }
        for column in shape.columns
        if column.name in row and row[column.name] is not UNCHANGED
    ]


def _identity(event: Event) -> list[dict[str, Any]] | None:
    """The old key or row; of an update that kept its key, the key."""
    if event.op == "update" and event.before is None and event.shape and event.after:
        keys = {c.name: event.after[c.name] for c in event.shape.columns if c.identity}
        return _columns(keys, event.shape)
    return _columns(event.before, event.shape)


def _metadata(shape: Shape | None) -> dict[str, Any]:
    keys = [_column_id(shape, column) for column in shape.columns if column.key] if shape else []
    return {
        "schema_id": None,
        "table_pgstream_id": str(shape.oid) if shape else "",
        "id_col_pgstream_id": keys or None,
    }


def _column_id(shape: Shape, column: Column) -> str:
    return "" if column.attnum is None else f"{shape.oid}-{column.attnum}"


def _value(text: Any, type_oid: int) -> Any:
    if text is None:
        return None
    if type_oid == oids.BOOL:
        return text == "t"
    if type_oid in oids.INTEGERS:
        return int(text)
    if type_oid in oids.FLOATS or type_oid == oids.NUMERIC:
        return _number(text)
    if type_oid == oids.BYTEA:
        return base64.b64encode(bytes.fromhex(text[2:])).decode()
    return text


def _number(text: str) -> Any:
    exact = Decimal(text)
    if not exact.is_finite():
        return None
    if len(text) > texts.MOST_DIGITS:
        return text
    if exact == exact.to_integral_value() and "E" not in text.upper():
        return int(exact)
    return float(text) if Decimal(repr(float(text))) == exact else text


def _message(event: Event) -> dict[str, Any]:
    payload = event.payload or {}
    if event.op == "ddl":
        return {"prefix": "pgstream.ddl", "content": json.dumps(_ddl(event, payload))}
    if event.op != "message":
        return {"prefix": f"pgtide.{event.op}", "content": json.dumps(payload)}
    content = payload.get("content")
    if content is None:
        content = base64.b64decode(payload.get("content_base64", "")).decode(errors="replace")
    return {"prefix": payload.get("prefix", ""), "content": content}


def _ddl(event: Event, payload: dict[str, Any]) -> dict[str, Any]:
    # Of what a command dropped, what it named: the rest went with that.
    dropped = [item for item in payload.get("dropped") or [] if item.get("original", True)]
    objects = payload.get("objects") or dropped
    return {
        "ddl": payload.get("statement") or payload.get("query"),
        "schema_name": event.schema or next((o.get("schema") for o in objects), None) or "",
        "command_tag": payload.get("tag"),
        "objects": [_ddl_object(item) for item in objects],
    }


def _ddl_object(item: dict[str, Any]) -> dict[str, Any]:
    described = {name: item.get(name) for name in ("type", "identity", "schema", "oid")}
    if item.get("columns"):
        described["columns"] = [_ddl_column(column) for column in item["columns"]]
    if item.get("primary_key"):
        described["primary_key_columns"] = item["primary_key"]
    return described


def _ddl_column(column: dict[str, Any]) -> dict[str, Any]:
    described = {name: column.get(name) for name in ("attnum", "name", "type", "nullable")}
    return described | {
        "default": column.get("default"),
        "generated": bool(column.get("generated")),
        "identity": _IDENTITIES.get(column.get("identity") or ""),
    }
