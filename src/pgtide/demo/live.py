"""Printing events as they arrive: coloured on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from pgtide.log.event import UNCHANGED, Event, Row

LINES_PER_TRANSACTION = 4
LONG_TEXT = 40  # characters; longer values are shown as their length
STYLES = {
    "insert": "green",
    "update": "yellow",
    "delete": "red",
    "truncate": "red",
    "ddl": "bold magenta",
    "message": "cyan",
}


class Screen:
    """Where the demo talks; says nothing when the user asked for JSON."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console: Any = None
        self._xid: int | None = None
        self._shown = self._hidden = 0
        self._lock = threading.Lock()  # the shop's thread has something to say as well
        if not quiet and sys.stdout.isatty():
            from rich.console import Console

            self._console = Console(highlight=False)

    def say(self, text: str = "", style: str = "") -> None:
        """One line."""
        if self._quiet:
            return
        with self._lock:
            if self._console is None:
                print(text, flush=True)
            else:
                self._console.print(text, style=style or None, markup=False, soft_wrap=True)

    def event(self, event: Event) -> None:
        """One line per event, and one for the rest of a large transaction."""
        if event.xid != self._xid:
            self._xid, self._shown = event.xid, 0
        self._shown += 1
        if self._shown > LINES_PER_TRANSACTION and not event.last:
            self._hidden += 1
            return
        if self._hidden:
            self.say(f"{'':9} … {self._hidden} more of this transaction", "dim")
            self._hidden = 0
        self.say(line(event), STYLES.get(event.op, ""))


def line(event: Event) -> str:
    """Time from commit to here, position, operation, table, values."""
    late = time.time() - event.committed_at.timestamp() if event.committed_at else 0.0
    head = f"{late * 1000:6.0f} ms {event.position!s:>14} {event.op:8} {event.table or '':9} "
    if event.payload is not None and event.op in ("ddl", "message"):
        return head + str(event.payload.get("statement") or event.payload.get("content"))
    row, old = event.after or event.before or {}, event.before if event.after else None
    return (head + ", ".join(_field(name, row, old or row) for name in row)).rstrip()


def _field(name: str, row: Row, old: Row) -> str:
    """A value; of an update that tells it, the old one too."""
    now, before = row[name], old.get(name, row[name])
    if now is UNCHANGED or now == before:
        return f"{name}={_value(now)}"
    return f"{name}={_value(before)}→{_value(now)}"


def _value(value: Any) -> str:
    if value is UNCHANGED:
        return "UNCHANGED"
    if value is None:
        return "NULL"
    return f"<{len(value)} characters>" if len(value) > LONG_TEXT else str(value)
