"""What of the log a target does not have: the first change of its tables behind a position."""

from __future__ import annotations

from pgtide.config import Config, TablePatterns
from pgtide.log.event import Event
from pgtide.log.reader import Log
from pgtide.position import Lsn, Position
from pgtide.postgres.catalog import selects

ROWS = frozenset({"insert", "update", "delete", "truncate", "read", "sweep"})
WRITES = frozenset({"insert", "update", "delete", "truncate", "ddl"})


def first_unapplied(
    config: Config, pipeline: str, reached: Position, until: Lsn
) -> Position | None:
    """The first event that the target lacks, of those at or before ``until``.

    ``reached`` is the last position that is in the target. Messages change nothing there.
    """
    return _first(config, pipeline, reached.next, until, ROWS | {"ddl"})


def first_write(config: Config, pipeline: str, after: Lsn, until: Lsn) -> Position | None:
    """The first change that somebody committed since the WAL was at ``after``, up to ``until``.

    That is where the next record begins: what is logged exactly there was committed later.
    """
    return _first(config, pipeline, Position(after), until, WRITES)


def _first(
    config: Config, pipeline: str, start: Position, until: Lsn, ops: frozenset[str]
) -> Position | None:
    patterns = TablePatterns(config.pipelines[pipeline].tables)
    log = Log(config.log.path, config.log.storage)
    start = max(start, Position(log.snapshot().complete_from))
    for event in log.events(start):
        if event.position.lsn > until:
            break
        if event.op in ops and _concerns(patterns, event):
            return event.position
    return None


def _concerns(patterns: TablePatterns, event: Event) -> bool:
    if event.op == "ddl":  # a function or a type concerns everybody
        no_op = (event.payload or {}).get("marks", {}).get("no_op")
        return not no_op and (
            event.table is None or patterns.matches(event.schema or "", event.table)
        )
    return event.shape is not None and selects(patterns, event.shape)
