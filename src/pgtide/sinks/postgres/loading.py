"""Rows of an initial snapshot, copied straight into tables that were empty before it.

Each task is a transaction that also notes which positions it has brought: a task that runs again,
or a batch that comes again, brings what is not noted yet. So every row is there once, although
the rows of a snapshot become visible piece by piece. A driver that begins opens a new epoch, and
tasks of the one before find that theirs is over. Notes are the pipeline's, whether its tables are
written together, side by side or when they were parked: a row has one position in the log.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from pgtide.errors import PgtideError, TargetUnavailable
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.copying import RESULT, copy_lines, finished, outcome, worker_session
from pgtide.sinks.postgres.failures import target_error
from pgtide.sinks.postgres.refused_lines import Destination, LineRefused
from pgtide.spark.arrow_tasks import map_in_arrow
from pgtide.spark.layout import TableName

Seqs = npt.NDArray[np.int64]


def open_load(
    connection: SqlConnection, pipeline: str, lsn: Lsn, tables: Sequence[TableName]
) -> tuple[int, set[TableName]]:
    """Begin an epoch for those of some tables that are empty, or being loaded; all that are."""
    epoch = secrets.randbits(62)
    with connection.transaction():
        query = 'SELECT "schema", "table" FROM pgtide.loads WHERE pipeline = %s AND lsn = %s'
        under_way = set(connection.execute(query, [pipeline, str(lsn)]).fetchall())
        for table in tables:
            if table in under_way or is_empty(connection, table):
                connection.execute(
                    "INSERT INTO pgtide.loads VALUES (%s, %s, %s, %s, %s)"
                    ' ON CONFLICT (pipeline, lsn, "schema", "table")'
                    " DO UPDATE SET epoch = excluded.epoch",
                    [pipeline, str(lsn), *table, epoch],
                )
                under_way.add(table)
    return epoch, under_way


def close_load(connection: SqlConnection, pipeline: str, parked: Collection[TableName]) -> None:
    """Forget what was noted: the snapshot is complete, but for tables that are parked."""
    query = 'SELECT lsn::text, "schema", "table" FROM pgtide.loads WHERE pipeline = %s'
    for lsn, *table in connection.execute(query, [pipeline]).fetchall():
        if tuple(table) not in parked:
            connection.execute(
                "DELETE FROM pgtide.loads"
                ' WHERE pipeline = %s AND lsn = %s AND "schema" = %s AND "table" = %s',
                [pipeline, lsn, *table],
            )
    connection.execute(
        "DELETE FROM pgtide.loaded d WHERE pipeline = %s AND NOT EXISTS"
        " (SELECT FROM pgtide.loads l WHERE (l.pipeline, l.lsn) = (d.pipeline, d.lsn))",
        [pipeline],
    )


def load_lines(lines: DataFrame, loader: Loader) -> int:
    """Copy lines into their tables; how many that were. TableRefused as ``stage_lines``."""
    return finished(map_in_arrow(lines, loader, RESULT))[1]


@dataclass(frozen=True)
class Loader:
    """Callable on the batches of a partition. It holds secrets: part of a task's closure only."""

    url: str = field(repr=False)
    destinations: Mapping[int, Destination]  # by stage
    pipeline: str
    lsn: Lsn
    epoch: int
    role: str  # of the session: ``replica`` looks at no foreign keys

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, failure = 0, b""
        brought: list[tuple[Seqs, Seqs]] = []  # stages, and places of their rows
        try:
            with worker_session(self.url) as connection, connection.transaction():
                done = self._begin(connection)
                rows = copy_lines(connection, _new(batches, done, brought), self.destinations)
                self._note(connection, _stretches([seqs for _, seqs in brought]))
        except LineRefused as refused:
            seqs = np.concatenate([seqs[stages == refused.stage] for stages, seqs in brought])
            position = Position(self.lsn, int(seqs[refused.number]))
            destination = self.destinations[refused.stage]
            failure = pickle.dumps(destination.refusal(refused.line, position, refused.error))
        except psycopg.Error as error:
            failure = pickle.dumps(target_error(error, "rows of the snapshot are copied"))
        except PgtideError as error:
            failure = pickle.dumps(error)
        yield outcome(self.epoch, rows, failure)

    def _begin(self, connection: SqlConnection) -> Seqs:
        """The stretches that are there; holds up whoever wants to begin the next epoch."""
        if self.role != "origin":
            connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a row that is refused, not a commit
        query = (
            'SELECT "schema", "table" FROM pgtide.loads'
            " WHERE pipeline = %s AND lsn = %s AND epoch = %s FOR SHARE"
        )
        found = connection.execute(query, [self.pipeline, str(self.lsn), self.epoch]).fetchall()
        if {*found} != {one.table for one in self.destinations.values()}:
            raise TargetUnavailable("somebody else has begun to load the target")
        query = "SELECT first_seq, last_seq FROM pgtide.loaded WHERE pipeline = %s AND lsn = %s"
        found = connection.execute(query, [self.pipeline, str(self.lsn)]).fetchall()
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)

    def _note(self, connection: SqlConnection, stretches: list[tuple[int, int]]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO pgtide.loaded VALUES (%s, %s, %s, %s)",
                [(self.pipeline, str(self.lsn), first, last) for first, last in stretches],
            )


def _new(
    batches: Iterable[pa.RecordBatch], done: Seqs, brought: list[tuple[Seqs, Seqs]]
) -> Iterator[pa.RecordBatch]:
    """The rows that are not there yet, as stage and line; notes their places."""
    for batch in batches:
        seqs = batch.column(1).to_numpy()
        if len(done):
            at = np.searchsorted(done[:, 0], seqs, side="right") - 1
            there = (at >= 0) & (seqs <= done[np.maximum(at, 0), 1])
            batch, seqs = batch.filter(pa.array(~there)), seqs[~there]
        brought.append((batch.column(0).to_numpy(), seqs))
        yield batch.select([0, 2])


def _stretches(brought: list[Seqs]) -> list[tuple[int, int]]:
    """Places without gaps, as first and last."""
    places = np.sort(np.concatenate(brought)) if brought else np.empty(0, np.int64)
    if not len(places):
        return []
    ends = np.flatnonzero(np.diff(places) != 1)
    firsts = np.concatenate([places[:1], places[ends + 1]])
    lasts = np.concatenate([places[ends], places[-1:]])
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def is_empty(connection: SqlConnection, table: TableName) -> bool:
    """Whether a table has no rows."""
    query = sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(sql.Identifier(*table))
    row: tuple[Any, ...] | None = connection.execute(query).fetchone()
    return row == (True,)
