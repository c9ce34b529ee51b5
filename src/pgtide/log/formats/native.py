"""pgtide's own form: the row of the log with names, nothing converted, nothing left out.

Values are Postgres texts. ``before`` holds the columns that were sent; a column of ``after``
whose value was not sent is missing there and named in ``unchanged``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pgtide.log.event import UNCHANGED, Event
from pgtide.log.source import LogSource


def format_event(event: Event, source: LogSource, now: datetime) -> dict[str, Any]:
    """The event as ``pgtide log tail`` prints it by default."""
    after = event.after or {}
    return {
        "position": str(event.position),
        "lsn": str(event.position.lsn),
        "seq": event.position.seq,
        "xid": event.xid,
        "committed_at": event.committed_at.isoformat() if event.committed_at else None,
        "op": event.op,
        "schema": event.schema,
        "table": event.table,
        "shape": event.shape.id if event.shape else None,
        "before": None if event.before is None else dict(event.before),
        "after": None
        if event.after is None
        else {name: value for name, value in after.items() if value is not UNCHANGED},
        "unchanged": [name for name, value in after.items() if value is UNCHANGED],
        "payload": event.payload,
        "last": event.last,
    }
