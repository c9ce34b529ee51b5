"""Tables that are being read again: until their rows are there, the target's are not the source's.

Above all after DDL that gave rows values which only the source knows. Such a table may even be
empty at the target until then.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtide.config import Config, TablePatterns
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection


@dataclass(frozen=True)
class Reads:
    """Refreshes of a pipeline's tables that are not done, as ``table (id)``."""

    going_on: tuple[str, ...]
    stuck: tuple[str, ...]  # failed or paused, and not given up: waiting does not help


def open_reads(config: Config, source: SqlConnection, patterns: list[TablePatterns]) -> Reads:
    """What the log knows of tables that all patterns select."""
    store = RefreshStore(Storage(config.log.path, config.log.storage))
    requests = store.requests()
    tables = [
        shape
        for shape in (read_layouts(source).values() if requests else ())
        if all(selects(each, shape) for each in patterns)
    ]
    going_on: list[str] = []
    stuck: list[str] = []
    for request in requests:
        state, wanted = store.standing(request.id).state, store.control(request.id)
        if state in ("done", "cancelled") or wanted == "cancel":
            continue
        if any(request.is_of(shape.name, shape.oid) for shape in tables):
            helpless = state in ("failed", "paused") or wanted == "pause"
            (stuck if helpless else going_on).append(f"{request.table} ({request.id})")
    return Reads(tuple(going_on), tuple(stuck))
