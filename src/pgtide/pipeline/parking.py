"""Parked tables: set aside with their error and position, and taken up again on request.

Tables that a rename ties together are parked together and come back together. What a parked
table missed is read from the log again, so a reader of its own keeps that part of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.config.model import Pipeline
from pgtide.errors import TransientError
from pgtide.log.readers import forget_reader, update_reader
from pgtide.log.snapshot import Snapshot
from pgtide.log.storage import Storage
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.reading import LogFrames, bounds_of
from pgtide.pipeline.state import Parked, Resuming, State, now
from pgtide.pipeline.state_file import Request
from pgtide.position import Position
from pgtide.shape import Shape
from pgtide.sinks import Kept
from pgtide.spark.layout import Layout
from pgtide.spark.positions import at_or_before

logger = logging.getLogger(__name__)


def reader_name(pipeline: str) -> str:
    """The name under which a pipeline is registered as a reader of the log."""
    return f"pipeline.{pipeline}"


def parked_reader_name(pipeline: str) -> str:
    """The name under which what a pipeline's parked tables need is kept."""
    return f"{reader_name(pipeline)}.parked"


def register(log: Storage, pipeline: str, state: State, version: int) -> None:
    """Say what the pipeline needs of the log: for parked tables before the rest moves on."""
    positions = [parked.position for parked in state.parked.values()]
    if positions:
        update_reader(log, parked_reader_name(pipeline), version, min(positions))
    update_reader(log, reader_name(pipeline), version, state.position)
    if not positions:
        forget_reader(log, parked_reader_name(pipeline))


def refuse(settings: Pipeline, failures: Sequence[Failure]) -> None:
    """End the pipeline with the first failure for which no table may be parked."""
    for failure in failures:
        if settings.on_error == "stop" or isinstance(failure.error, TransientError):
            raise failure.error


def without(batch: Batch, failures: Sequence[Failure]) -> Batch:
    """The batch without tables that failed, of which its target is to know."""
    for failure in failures:
        error, low = failure.error, failure.position or batch.census.low
        parked = Parked(low, error.message, error.detail, error.hint, now())
        names = [".".join(table) for table in failure.work.tables]
        lacking = {**batch.lacking, **dict.fromkeys(names, parked)}
        batch = replace(batch, parked=batch.parked | {*names}, lacking=lacking)
    return batch


def park(
    pipeline: str,
    state: State,
    failure: Failure,
    at: Position,
    tables: Iterable[str] | None = None,
) -> None:
    """Set the tables that failed aside; ``tables`` if more than those have to wait.

    ``at`` is where the batch begins: before a table's first step there may be DDL that is none.
    """
    if tables is None:
        tables = [".".join(table) for table in failure.work.tables]
    error = failure.error
    parked = Parked(at, error.message, error.detail, error.hint, now())
    state.parked.update(dict.fromkeys(tables, parked))
    logger.error(
        "pipeline %s parked %s at %s: %s; once that is put right: pgtide resume --pipeline %s",
        pipeline,
        failure.work.name,
        at,
        f"{error.message}: {error.detail}".rstrip(": ."),
        pipeline,
    )


def advance(state: State, tables: Iterable[str], kept: Kept | None) -> None:
    """Park tables where a target has them that came further than those they were with."""
    for name in tables:
        known = kept.parked.get(name) if kept is not None else None
        if known is not None and known.position > state.parked[name].position:
            state.parked[name] = replace(state.parked[name], position=known.position)


def spread(state: State, batch: Batch) -> None:
    """Park tables that waiting ones were renamed to, or from: they miss the same changes."""
    for work in batch.waiting:
        names = [".".join(table) for table in sorted(work.tables)]
        parked = min(
            (state.parked[name] for name in names if name in state.parked),
            key=lambda known: known.position,
        )
        state.parked.update(dict.fromkeys(names, parked))


def wanted_groups(state: State, requests: Iterable[Request]) -> list[list[str]]:
    """The parked tables that were asked for, with those they are tied to."""
    asked = {request.table for request in requests}
    groups: dict[Parked, list[str]] = {}
    for table, parked in sorted(state.parked.items()):
        groups.setdefault(parked, []).append(table)
    return [tables for tables in groups.values() if None in asked or asked & {*tables}]


def plan(state: State, tables: list[str], cuts: Iterable[Position], until: Position) -> Resuming:
    """What parked tables have to catch up with; ``cuts`` bound its parts in size."""
    start = state.parked[tables[0]].position
    inner = [cut for cut in cuts if start <= cut and cut.next < until]
    return Resuming(tables, start, until, [*inner, Position.end_of(until.lsn)])


def missed_rows(
    frames: LogFrames, snapshot: Snapshot, shapes: dict[int, Shape], resuming: Resuming
) -> DataFrame:
    """The next part of what parked tables missed.

    Any version will do, since rows between two positions never change.
    """
    bounds = bounds_of(resuming.start, resuming.chunks, resuming.chunks_done)
    frame = frames.between(snapshot.version, *bounds)
    tables = set(resuming.tables)
    ids = [s.id for s in shapes.values() if ".".join(Layout.of(s, shapes).table) in tables]
    theirs = F.col("shape").isin(*ids) | F.col("shape").isNull()
    last = Position(resuming.until.lsn, resuming.until.seq - 1)
    return frame.filter(theirs & at_or_before(last))
