"""Rows of the log's files read by Python, in slices that tasks read by themselves.

Nothing is ordered here: a slice is some row groups, and of them the rows within a range of
positions. A task reads the files that were planned for it. If clean-up removed one of them, an
hour or more after compaction replaced it, the task fails and the query is to be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pyspark.sql.datasource import InputPartition

from pgtide.errors import LogError, LogUnavailable
from pgtide.log.order import Piece, open_pieces
from pgtide.log.reader import Log
from pgtide.log.schema import CHANGES
from pgtide.log.sizes import VALUES, cut, row_sizes
from pgtide.log.snapshot import DataFile, Snapshot, newest_snapshot
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.spark.alignment import Alignment, added_columns
from pgtide.spark.arrow_rows import PLAIN, ChangeRows
from pgtide.spark.changes import EVENT_OPS
from pgtide.spark.layout import Policy, TableName
from pgtide.spark.logged_table import LoggedTable

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

SLICE_BYTES = 16 * 1024 * 1024  # of files, compressed
BATCH_ROWS = 16_384
BATCH_BYTES = 16 * 1024 * 1024  # of texts, in memory


@dataclass(frozen=True)
class Slice(InputPartition):
    """Every ``parts``-th row group of some files, from the ``part``-th on."""

    files: tuple[DataFile, ...]
    part: int
    parts: int
    start: Position
    end: Position  # the first that does not count

    def overlaps(self, piece: Piece | DataFile) -> bool:
        return piece.low < self.end and piece.high >= self.start

    def pieces(self, storage: Storage, mine: Callable[[TableName | None], bool]) -> Iterator[Piece]:
        """Its row groups, those of other tables left out."""
        for file in self.files:
            try:
                found = open_pieces(storage, file)
            except FileNotFoundError:
                raise LogUnavailable(
                    "a data file of the log is gone",
                    detail="It was to be read before the log was compacted and cleaned.",
                    hint="Run the query again; streams and pipelines go on where they were.",
                ) from None
            wanted = [piece for piece in found if self.overlaps(piece) and mine(piece.table)]
            yield from wanted[self.part :: self.parts]

    def of(self, rows: pa.Table) -> pa.Table:
        """Those of some rows that are meant."""
        if not rows.num_rows or self._holds(rows):
            return rows
        return rows.filter(pc.and_(_reaches(rows, self.start), pc.invert(_reaches(rows, self.end))))

    def _holds(self, rows: pa.Table) -> bool:
        """Whether all of them are, told by transactions."""
        lsn: Any = pc.min_max(rows.column("lsn"))
        low, high = lsn["min"].as_py(), lsn["max"].as_py()
        return bool(low > int(self.start.lsn) and high < int(self.end.lsn))


def slices_of(
    snapshot: Snapshot,
    start: Position,
    end: Position,
    mine: Callable[[TableName | None], bool],
) -> list[Slice]:
    """Rows at or after ``start`` and before ``end``, in slices of about equal bytes."""
    whole = Slice((), 0, 1, start, end)
    files = [
        file
        for file in sorted(snapshot.files, key=lambda file: file.low)
        if whole.overlaps(file) and mine(file.table)
    ]
    sizes = np.array([_bytes_between(file, start, end) for file in files], np.int64)
    slices = []
    for begin, after in cut(sizes, 1000, SLICE_BYTES):
        parts = max(1, round(int(sizes[begin:after].sum()) / SLICE_BYTES))
        chosen = tuple(files[begin:after])
        slices += [Slice(chosen, part, parts, start, end) for part in range(parts)]
    return slices


def _bytes_between(file: DataFile, start: Position, end: Position) -> int:
    """About how much of a file lies between two positions: all of it, but for one LSN's rows."""
    if file.low.lsn != file.high.lsn:
        return file.size
    low, high = max(file.low, start).seq, min(file.high.next, end).seq
    if end.lsn != file.high.lsn:
        high = file.high.next.seq
    return file.size * (high - low) // (file.high.next.seq - file.low.seq)


@dataclass(frozen=True)
class LoggedChanges:
    """A table as it was found in a log; plain data, so that it can be sent to other processes."""

    root: str
    options: dict[str, str] = field(repr=False)  # may hold keys of an object store
    table: LoggedTable
    rows: ChangeRows
    newest_shape: int  # of all tables; ids only grow
    end: Position

    @classmethod
    def open(
        cls,
        path: str,
        options: Mapping[str, str],
        name: str,
        policy: Policy,
        unbounded_numeric: str,
    ) -> LoggedChanges:
        log = Log(path, dict(options))
        # In this order: a shape is durable before the first row that has it.
        snapshot, shapes = log.snapshot(), log.shapes()
        found = LoggedTable.find(name, shapes).sized(unbounded_numeric)
        changes = Storage(path, dict(options)).child(CHANGES)
        alignment = _alignment(changes, snapshot, found)
        return cls(
            root=Storage(path).root,  # absolute: tasks run in directories of their own
            options=dict(options),
            table=found,
            rows=ChangeRows.of(found.layout, alignment, policy),
            newest_shape=max(shapes),
            end=snapshot.end,
        )

    @property
    def storage(self) -> Storage:
        """The files of the log's changes."""
        return Storage(self.root, self.options).child(CHANGES)

    def snapshot(self) -> Snapshot:
        return newest_snapshot(self.storage)

    def refuse_new_shapes(self) -> None:
        """Fail when the table has got other columns, or a partition, since it was looked up."""
        for shape in Log(self.root, self.options).shapes().values():
            if shape.id > self.newest_shape and self.table.owns(shape):
                raise LogError(
                    "the table's columns changed",
                    detail=f"{self.rows.table} has a layout that the query does not know.",
                    hint="Start the query again; it goes on from its checkpoint.",
                )

    def slices(self, snapshot: Snapshot, start: Position, end: Position) -> list[Slice]:
        """Rows at or after ``start`` and before ``end``, of about equal bytes."""
        return slices_of(snapshot, start, end, self._mine)

    def read(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """The changes of a slice."""
        columns = list(dict.fromkeys([*PLAIN, "shape", *VALUES]))
        for piece in wanted.pieces(self.storage, self._mine):
            rows = wanted.of(piece.read(columns))
            rows = rows.filter(self._changes(rows))
            for begin, after in cut(row_sizes(rows), BATCH_ROWS, BATCH_BYTES):
                for batch in rows.slice(begin, after - begin).to_batches():
                    yield self.rows.convert(batch)

    def _mine(self, table: TableName | None) -> bool:
        return table is None or table in self.table.names

    def _changes(self, rows: pa.Table) -> Any:
        """Which rows are changes of this table."""
        return pc.and_(
            pc.is_in(rows.column("op"), pa.array(EVENT_OPS)),
            pc.is_in(rows.column("shape"), pa.array(self.table.ids, pa.int64())),
        )


def _reaches(rows: pa.Table, position: Position) -> Any:
    lsn, seq = rows.column("lsn"), rows.column("seq")
    same = pc.and_(pc.equal(lsn, int(position.lsn)), pc.greater_equal(seq, position.seq))
    return pc.or_(pc.greater(lsn, int(position.lsn)), same)


def _alignment(changes: Storage, snapshot: Snapshot, table: LoggedTable) -> Alignment:
    shape = table.layout.shape
    plain = Alignment.to(shape, table.shapes)
    if plain.complete:
        return plain
    # Columns were added: only then the log is searched for what older rows have in them.
    added = added_columns(_ddl(changes, snapshot.files), shape.oid)
    return Alignment.to(shape, table.shapes, added)


def _ddl(changes: Storage, files: Sequence[DataFile]) -> Iterator[str]:
    for file in files:
        for piece in open_pieces(changes, file):
            found = pc.equal(piece.read(["op"]).column("op"), "ddl")
            if pc.any(found).as_py():
                payloads = piece.read(["payload"]).column("payload").filter(found)
                yield from (str(payload) for payload in payloads.to_pylist())
