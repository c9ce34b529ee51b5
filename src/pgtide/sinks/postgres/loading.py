"""Rows of an initial snapshot, copied straight into tables that were empty before it.

Each task is a transaction that also notes which positions it has brought: a task that runs again,
or a batch that comes again, brings what is not noted yet. So every row is there once, although
the rows of a snapshot become visible piece by piece. A driver that begins opens a new epoch, and
tasks of the one before find that theirs is over. Notes are the pipeline's, whether its tables are
written together, side by side or when they were parked: a row has one position in the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import sql
from pyarrow import compute
from pyspark.sql import SparkSession

from pgtide.errors import TargetUnavailable
from pgtide.log.order import Piece
from pgtide.log.sizes import cut, value_sizes
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.copying import Lines, Outcome, finished, outcome, worker_session
from pgtide.sinks.postgres.failures import TableRefused
from pgtide.sinks.postgres.refused_lines import Destination, LineRefused
from pgtide.spark.layout import TableName
from pgtide.spark.log_slices import Slice
from pgtide.wal.copy_lines import copy_lines

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

PART_BYTES = 1 << 20  # of values that are made lines at once
_NONE: Any = 0  # no shape has this id
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


def load_rows(spark: SparkSession, slices: Sequence[Slice], loader: Loader) -> int:
    """Copy rows of the log into their tables; how many that were.

    TableRefused for a row that the target does not take.
    """
    if not slices:
        return 0
    tasks = spark.sparkContext.parallelize(slices, len(slices)).mapPartitions(loader)
    return finished(tasks.collect())[1]


@dataclass(frozen=True)
class Loader:
    """Callable on the slices of a partition. It holds secrets: part of a task's closure only.

    Rows do not pass through Java: five million took 34 s of CPU time that way, and take 3 s.
    """

    url: str = field(repr=False)
    log: Storage = field(repr=False)
    destinations: Mapping[int, Destination]  # by shape
    tables: frozenset[TableName]  # of the source, that those shapes are of
    pipeline: str
    lsn: Lsn
    epoch: int
    role: str  # of the session: ``replica`` looks at no foreign keys

    def __call__(self, slices: Iterable[Slice]) -> Iterator[Outcome]:
        brought, mine = Brought(), list(slices)

        def copy() -> int:
            with worker_session(self.url) as connection, connection.transaction():
                self._wait(connection, mine)
                self._copy(connection, mine, self._begin(connection), brought)
                return brought.note(connection, self.pipeline, self.lsn)

        def refusal(refused: LineRefused) -> TableRefused:
            position = Position(self.lsn, brought.place(refused.stage, refused.number))
            return self.destinations[refused.stage].refusal(refused.line, position, refused.error)

        yield outcome(self.epoch, copy, refusal, "rows of the snapshot are copied")

    def wants(self, table: TableName | None) -> bool:
        """Whether rows that are filed under a name may be meant; None: under several."""
        return table is None or table in self.tables

    def _wait(self, connection: SqlConnection, slices: Iterable[Slice]) -> None:
        """Until nobody else copies these rows: Spark runs a task again that it thinks is lost.

        What the other one has brought by then is noted, and would be refused if it came twice.
        """
        for one in slices:
            rows = (self.pipeline, str(self.lsn), sorted(self.tables), one.files[0].path, one.part)
            query = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
            connection.execute(query, [f"pgtide load {rows}"])

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

    def _copy(
        self, connection: SqlConnection, slices: Iterable[Slice], done: Seqs, brought: Brought
    ) -> None:
        """Send all rows that are not there yet."""
        waiting: dict[int, Lines] = {}
        for one in slices:
            for piece in one.pieces(self.log, self.wants):
                for shape, seqs, after in self._new(piece, one, done):
                    brought.add(shape, seqs)
                    command = self.destinations[shape].command
                    mine = waiting.setdefault(shape, Lines(shape, command))
                    mine.add(connection, copy_lines(after), len(seqs))
        for mine in waiting.values():
            mine.flush(connection)

    def _new(
        self, piece: Piece, wanted: Slice, done: Seqs
    ) -> Iterator[tuple[int, Seqs, pa.ListArray[Any]]]:
        """The rows of each table that are not there yet, with their places; in bounded parts."""
        rows = piece.read(["lsn", "seq", "shape", "op"])
        lsns, seqs = rows["lsn"].to_numpy(), rows["seq"].to_numpy()
        shapes = rows["shape"].fill_null(_NONE).to_numpy()
        chosen = (lsns == self.lsn) & (seqs >= wanted.start.seq) & (seqs < wanted.end.seq)
        chosen &= pc.equal(rows["op"], "read").to_numpy()  # sweeps of tables are there too
        if len(done):
            at = np.searchsorted(done[:, 0], seqs, side="right") - 1
            chosen &= ~((at >= 0) & (seqs <= done[np.maximum(at, 0), 1]))
        found = self.destinations.keys() & {*np.unique(shapes[chosen]).tolist()}
        after: Any = piece.read(["after"])["after"] if found else None
        for shape in sorted(found):
            mine = chosen & (shapes == shape)
            values = after if mine.all() else after.filter(pa.array(mine))
            places, begin = seqs[mine], 0
            for chunk in values.chunks:
                for part in _parts(chunk):
                    yield shape, places[begin : begin + len(part)], part
                    begin += len(part)


class Brought:
    """What a task has sent: by shape, where its rows stand in the log."""

    def __init__(self) -> None:
        self._places: dict[int, list[Seqs]] = {}

    def add(self, shape: int, seqs: Seqs) -> None:
        self._places.setdefault(shape, []).append(seqs)

    def place(self, shape: int, number: int) -> int:
        """Where the row stands that was the so manieth of its shape."""
        return int(np.concatenate(self._places[shape])[number])

    def note(self, connection: SqlConnection, pipeline: str, lsn: Lsn) -> int:
        """Have the target know; how many rows that are."""
        places = [seqs for mine in self._places.values() for seqs in mine]
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO pgtide.loaded VALUES (%s, %s, %s, %s)",
                [(pipeline, str(lsn), first, last) for first, last in _stretches(places)],
            )
        return sum(map(len, places))


def _parts(rows: pa.ListArray[Any]) -> Iterator[pa.ListArray[Any]]:
    """Rows in parts whose lines stay near the processor until they are sent."""
    for begin, end in cut(value_sizes(rows), len(rows), PART_BYTES):
        yield rows.slice(begin, end - begin)


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
