"""Debezium's envelope, as its JSON converter writes it with ``schemas.enable=false``.

Where the log has other facts than Debezium: ``source.version`` is pgtide's, ``source.name``
the slot; ``lsn`` and ``sequence`` hold the commit LSN of the transaction, for Debezium the
LSN of the change; ``snapshot`` is ``true`` for rows of the newest initial snapshot, none of
which is told to be its last, and ``incremental`` for all others that were read, not changed
(these have an ``lsn`` too, where they stand in the log, for Debezium none);
``xmin`` and ``origin`` are unknown, as are the values of columns that are not part of the
replica identity: they are missing in ``before``. An update of the key is one event ``u``,
where Debezium writes a delete and a create. DDL and sweeps, which Debezium does not know,
are messages (``m``) with prefix ``pgtide.ddl`` and ``pgtide.sweep``.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from pgtide import oids
from pgtide.log.event import UNCHANGED, Event, Row
from pgtide.log.formats.debezium_values import convert
from pgtide.log.source import LogSource
from pgtide.shape import Column, Shape
from pgtide.version import __version__

UNAVAILABLE = "__debezium_unavailable_value"

_OPS = {"insert": "c", "update": "u", "delete": "d", "read": "r", "truncate": "t"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def format_event(event: Event, source: LogSource, now: datetime) -> dict[str, Any]:
    """The event's value in Debezium's envelope."""
    op = _OPS.get(event.op, "m")
    envelope: dict[str, Any] = {}
    if op not in ("t", "m"):
        envelope["before"] = _row(event.before, event.shape)
        envelope["after"] = _row(event.after, event.shape)
    envelope |= {
        "source": _source(event, source),
        "transaction": None,
        "op": op,
        **_clock(_micros(now)),
    }
    if op == "m":
        envelope["message"] = _message(event)
    return envelope


def _source(event: Event, source: LogSource) -> dict[str, Any]:
    micros = None if event.committed_at is None else _micros(event.committed_at)
    clock = _clock(micros)
    lsn = int(event.position.lsn)
    return {
        "version": __version__,
        "connector": "postgresql",
        "name": source.slot,
        "ts_ms": clock["ts_ms"],
        "snapshot": _snapshot(event, source),
        "db": source.database,
        "sequence": json.dumps([None, str(lsn)], separators=(",", ":")),
        "ts_us": clock["ts_us"],
        "ts_ns": clock["ts_ns"],
        "schema": event.schema or "",
        "table": event.table or "",
        "txId": event.xid,
        "lsn": lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _snapshot(event: Event, source: LogSource) -> str:
    if event.op != "read":
        return "false"
    # The initial snapshot is at its consistent point minus one.
    return "true" if event.position.lsn + 1 == source.snapshot else "incremental"


def _clock(micros: int | None) -> dict[str, int | None]:
    if micros is None:
        return dict.fromkeys(("ts_ms", "ts_us", "ts_ns"))
    return {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": micros * 1000}


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _row(row: Row | None, shape: Shape | None) -> dict[str, Any] | None:
    if row is None or shape is None:
        return None
    return {
        column.name: _value(row[column.name], column)
        for column in shape.columns
        if column.name in row
    }


def _value(value: Any, column: Column) -> Any:
    if value is None:
        return None
    if value is UNCHANGED:
        if column.type_oid == oids.BYTEA:
            return _base64(UNAVAILABLE)
        return [UNAVAILABLE] if column.type_oid in oids.ARRAY_ELEMENTS else UNAVAILABLE
    return convert(value, column.type_oid, column.typmod)


def _message(event: Event) -> dict[str, str]:
    payload = event.payload or {}
    if event.op != "message":
        text = json.dumps(payload, ensure_ascii=False)
        return {"prefix": f"pgtide.{event.op}", "content": _base64(text)}
    return {
        "prefix": payload.get("prefix", ""),
        "content": payload.get("content_base64") or _base64(payload.get("content", "")),
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
