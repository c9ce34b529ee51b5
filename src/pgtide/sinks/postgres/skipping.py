"""Leaving out a DDL statement at a target, because somebody decided so."""

from __future__ import annotations

from dataclasses import dataclass

from pgtide.errors import ConfigError
from pgtide.log.reader import Log
from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.bookkeeping import prepare, read_progress
from pgtide.sinks.postgres.keeping import read_kept


@dataclass(frozen=True, slots=True)
class Skipped:
    """The command that is left out."""

    position: Position
    tag: str  # as in ALTER TABLE
    table: str | None  # the first table it is about
    again: bool  # whether that was decided before


def skip(connection: SqlConnection, log: Log, pipeline: str, position: Position) -> Skipped:
    """Note that the command at a position is not to be replayed."""
    event = next(iter(log.events(position)), None)
    if event is None or event.position != position or event.op != "ddl":
        there = event is not None and event.position == position
        found = f"another event ({event.op})" if event is not None and there else "nothing"
        raise ConfigError(
            f"{position} is not the position of a DDL statement",
            detail=f"The log has {found} there.",
            hint="The error that stopped the pipeline names the position: pgtide status",
        )
    prepare(connection)
    with connection.transaction():
        reached = read_progress(connection, pipeline, "FOR UPDATE")
        if reached >= position and not _is_lacking(connection, pipeline, position):
            raise ConfigError(
                f"the statement at {position} is applied already",
                detail=f"The target is at {reached}.",
                hint="Undo it at the target by hand, if it must be.",
            )
        inserted = connection.execute(
            "INSERT INTO pgtide.skipped (pipeline, lsn, seq) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            [pipeline, str(position.lsn), position.seq],
        ).rowcount
    table = f"{event.schema}.{event.table}" if event.table is not None else None
    tag = str((event.payload or {}).get("tag") or "DDL")
    return Skipped(position, tag, table, again=not inserted)


def _is_lacking(connection: SqlConnection, pipeline: str, position: Position) -> bool:
    """Whether parked tables have still to come to a position that the others have reached."""
    return any(
        parked.position <= position for parked in read_kept(connection, pipeline).parked.values()
    )
