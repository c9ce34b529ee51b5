"""Tasks that stage a batch's rows straight from the log's files, where that is all there is to do.

Each task reads all of the batch and takes its share of the keys. It holds the last state of each
of them, which is bounded: a batch that is larger goes through Spark, which has a disk for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter

from pyspark.sql import SparkSession

from pgtide.log.storage import Storage
from pgtide.pipeline.census import Census
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.copying import (
    Lines,
    Outcome,
    finished,
    new_load,
    outcome,
    staged_refusal,
    staging,
)
from pgtide.sinks.postgres.plain_state import COLUMNS, PlainTables, States
from pgtide.sinks.postgres.refused_lines import Destination
from pgtide.spark.layout import TableName
from pgtide.spark.log_slices import Slice

HELD_BYTES = 128 << 20  # of states in a task
SHARE_ROWS = 50_000  # of a batch, that a task is worth
MOST_SHARES = 8  # each reads all of the batch; also where fewer hold too much
_TOO_MUCH = -1  # told in place of a number of rows


@dataclass(frozen=True)
class PlainStager:
    """Callable on numbers of shares. It holds secrets: part of a task's closure only."""

    url: str = field(repr=False)
    log: Storage = field(repr=False)
    rows: Slice
    tables: PlainTables
    destinations: Mapping[int, Destination]  # by stage
    shares: int
    most: int  # bytes of states in a task

    def __call__(self, numbers: Iterable[int]) -> Iterator[Outcome]:
        refusal = staged_refusal(self.destinations)
        for share in numbers:
            load = new_load()
            yield outcome(load, partial(self._copy, share, load), refusal, "rows are staged")

    def _copy(self, share: int, load: int) -> int:
        held, size = [], 0
        for piece in self.rows.pieces(self.log, self._wants):
            states = self.tables.states(self.rows.of(piece.read(COLUMNS)))
            held.append(self.tables.compacted(states, share, self.shares))
            size += held[-1].nbytes
            if size > self.most:
                return _TOO_MUCH
        if not held:
            return 0
        states, several = States.joined(held), len(held) > 1
        held.clear()  # all of it is there twice
        # What is left of all pieces belongs to this share.
        last = self.tables.compacted(states) if several else states
        with staging(self.url, load) as connection:
            return self._send(connection, last)

    def _send(self, connection: SqlConnection, states: States) -> int:
        rows = 0
        for stage, parts in groupby(self.tables.lines(states), itemgetter(0)):
            lines = Lines(stage, self.destinations[stage].command)
            for _, text, count in parts:
                lines.add(connection, text, count)
                rows += count
            lines.flush(connection)
        return rows

    def _wants(self, table: TableName | None) -> bool:
        return table is None or table in self.tables.names


def stage_from_files(
    spark: SparkSession,
    log: Storage,
    census: Census,
    tables: PlainTables,
    url: str,
    destinations: Mapping[int, Destination],
) -> tuple[list[int], int] | None:
    """Stage the rows of a batch, as ``stage_lines`` does; None where they are too much for that."""
    assert census.high is not None, "a batch has rows"
    rows = Slice(census.files, 0, 1, census.low, census.high.next)
    cores = spark.sparkContext.defaultParallelism
    few = max(1, min(cores, MOST_SHARES, census.rows // SHARE_ROWS))
    for shares in sorted({few, MOST_SHARES}):  # smaller ones where those do not fit
        stager = PlainStager(url, log, rows, tables, dict(destinations), shares, HELD_BYTES)
        tasks = spark.sparkContext.parallelize(range(shares), shares).mapPartitions(stager)
        told = tasks.collect()
        staged = finished(told)
        if all(count != _TOO_MUCH for _, count, _ in told):
            return staged
    return None
