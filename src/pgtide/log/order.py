"""Reading data files in order, in bounded memory, whatever the order of rows inside them.

Only bounds are trusted, never the order of rows. Files, then row groups, whose ranges of
positions overlap form a cluster; clusters follow one another. A cluster larger than a
window is read twice: first nothing but its sort keys, which say exactly which rows make up
each window, then the rows of one window after the other. Compaction reads its input the
same way, by other keys.

A cluster costs 32 bytes of memory per row while it is read, a window ``WINDOW_BYTES``, and
a row group has to fit besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pgtide.log.files import open_input
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.sizes import VALUES, cut, row_sizes
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position

if TYPE_CHECKING:
    from pgtide.config import TablePatterns

WINDOW_ROWS = 131_072
WINDOW_BYTES = 32 * 1024 * 1024  # in memory
BATCH_ROWS = 16_384

Keys = list[npt.NDArray[np.int64]]
TableName = tuple[str | None, str | None]  # schema and table


class _Bounded(Protocol):
    @property
    def low(self) -> Position: ...
    @property
    def high(self) -> Position: ...


_Range = TypeVar("_Range", bound=_Bounded)


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group, the smallest thing that is read at once, or several that are in memory."""

    source: tuple[pq.ParquetFile, int] | pa.Table
    day: date
    rows: int
    bytes: int  # in memory, about
    low: Position
    high: Position
    table: tuple[str, str] | None

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """The rows, with the log's column types."""
        wanted = columns or FILE_SCHEMA.names
        if isinstance(self.source, pa.Table):
            return self.source.select(wanted)
        file, index = self.source
        # Threads cost more than they give where there is little to do.
        rows = file.read_row_group(index, columns=wanted, use_threads=self.rows > BATCH_ROWS)
        schema = pa.schema([FILE_SCHEMA.field(name) for name in wanted])
        rows = rows.select(wanted)
        return rows if rows.schema.equals(schema) else rows.cast(schema)


def read_ordered(
    storage: Storage,
    files: Iterable[DataFile],
    start: Position | None = None,
    tables: TablePatterns | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows at or after ``start`` by position, with ``day``, as the log's columns.

    With ``tables``, rows of matching tables alone; what belongs to no table is left out then.
    """
    wanted = [file for file in files if _wanted(file, start, tables)]
    for cluster in clusters(wanted):
        pieces = [piece for file in cluster for piece in open_pieces(storage, file)]
        for overlapping in clusters([p for p in pieces if _wanted(p, start, tables)]):
            for window in read_sorted(overlapping, position_keys, day=True):
                rows = _after(window, start)
                if tables is not None:
                    rows = _matching(rows, tables)
                yield from rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def clusters(ranges: Iterable[_Range]) -> Iterator[list[_Range]]:
    """Group what overlaps; the groups are in order and do not overlap one another."""
    cluster: list[_Range] = []
    high: Position | None = None
    for item in sorted(ranges, key=lambda item: item.low):
        if high is not None and item.low > high:
            yield cluster
            cluster, high = [], None
        cluster.append(item)
        high = item.high if high is None else max(high, item.high)
    if cluster:
        yield cluster


def open_pieces(storage: Storage, file: DataFile) -> list[Piece]:
    """The row groups of a file, bounded by their own statistics where there are any."""
    parquet = pq.ParquetFile(open_input(storage, file.path))
    columns = {parquet.schema.column(i).path: i for i in range(len(parquet.schema.names))}
    pieces = []
    for index in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(index)
        lsn, seq, schema, table = (
            _bounds(group, columns[name]) for name in ("lsn", "seq", "schema", "table")
        )
        one_table = schema and table and schema[0] == schema[1] and table[0] == table[1]
        pieces.append(
            Piece(
                source=(parquet, index),
                day=file.day,
                rows=group.num_rows,
                bytes=_memory(group),
                low=Position(Lsn(lsn[0]), seq[0]) if lsn and seq else file.low,
                high=Position(Lsn(lsn[1]), seq[1]) if lsn and seq else file.high,
                table=(schema[0], table[0]) if schema and table and one_table else file.table,
            )
        )
    return pieces


def in_memory(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The same rows as one piece, read once, when together they fit into a window."""
    if not pieces or not _one_window(pieces):
        return pieces
    return [
        replace(
            pieces[0],
            source=pa.concat_tables(piece.read() for piece in pieces).combine_chunks(),
            rows=sum(piece.rows for piece in pieces),
            bytes=sum(piece.bytes for piece in pieces),
            low=min(piece.low for piece in pieces),
            high=max(piece.high for piece in pieces),
            table=None,
        )
    ]


def count_rows(pieces: Iterable[Piece]) -> Counter[TableName]:
    """How many rows each table has; what belongs to none has None for a name."""
    counts: Counter[TableName] = Counter()
    for piece in pieces:
        rows = piece.read(["schema", "table"])
        for row in rows.group_by(["schema", "table"]).aggregate([([], "count_all")]).to_pylist():
            counts[row["schema"], row["table"]] += row["count_all"]
    return counts


def read_sorted(
    pieces: Sequence[Piece], keys: Callable[[Piece], Keys], *, day: bool = False
) -> Iterator[pa.Table]:
    """All rows of the pieces, sorted by ``keys``, one window after the other.

    ``keys`` takes one piece and returns arrays to sort by, the most significant first.
    """
    per_piece = [keys(piece) for piece in pieces]
    arrays = [np.concatenate(parts) for parts in zip(*per_piece, strict=True)]
    order = np.lexsort(arrays[::-1])
    starts = np.cumsum([0, *(piece.rows for piece in pieces)])
    for begin, end in _windows(pieces, order):
        yield _window(pieces, starts, order[begin:end], day=day)


def _windows(pieces: Sequence[Piece], order: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where to cut the sorted rows; their values are looked at if they are not few."""
    if _one_window(pieces):
        return iter([(0, len(order))])
    sizes = np.concatenate([row_sizes(piece.read(VALUES)) for piece in pieces])
    return cut(sizes[order], WINDOW_ROWS, WINDOW_BYTES)


def _window(
    pieces: Sequence[Piece],
    starts: npt.NDArray[np.int64],
    window: npt.NDArray[np.int64],
    *,
    day: bool,
) -> pa.Table:
    """The rows with these numbers, in this order; ``starts`` has each piece's first number."""
    owners = np.searchsorted(starts, window, side="right") - 1
    parts, taken = [], []
    for owner in np.unique(owners):
        places = np.flatnonzero(owners == owner)
        rows = pieces[owner].read()
        if len(places) < rows.num_rows:
            rows = rows.take(window[places] - starts[owner])
            taken.append(places)
        else:
            # All rows of the piece are wanted: keep them as they lie.
            taken.append(places[np.argsort(window[places])])
        parts.append(_with_day(rows, pieces[owner].day) if day else rows)
    rows = pa.concat_tables(parts)
    places = np.argsort(np.concatenate(taken))
    in_order = bool(np.all(places[:-1] < places[1:]))
    return rows if in_order else rows.take(places)


def position_keys(piece: Piece) -> Keys:
    """Sort keys for reading by position."""
    rows = piece.read(["lsn", "seq"])
    return [rows.column(name).to_numpy() for name in ("lsn", "seq")]


def _one_window(pieces: Sequence[Piece]) -> bool:
    return (
        sum(piece.rows for piece in pieces) <= WINDOW_ROWS
        and sum(piece.bytes for piece in pieces) <= WINDOW_BYTES
    )


def _memory(group: Any) -> int:
    """What a row group takes in memory: Arrow has an offset also where Parquet has nothing."""
    values: int = sum(group.column(index).num_values for index in range(group.num_columns))
    return int(group.total_byte_size) + 4 * values


def _bounds(group: Any, column: int) -> tuple[Any, Any] | None:
    statistics = group.column(column).statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return statistics.min, statistics.max


def _wanted(item: DataFile | Piece, start: Position | None, tables: TablePatterns | None) -> bool:
    if start is not None and item.high < start:
        return False
    return tables is None or item.table is None or tables.matches(*item.table)


def _after(rows: pa.Table, start: Position | None) -> pa.Table:
    if start is None or rows.num_rows == 0:
        return rows
    lsn, seq = rows.column("lsn").to_numpy(), rows.column("seq").to_numpy()
    # Rows are in order here, so what precedes `start` is a head.
    head = np.count_nonzero((lsn < start.lsn) | ((lsn == start.lsn) & (seq < start.seq)))
    return rows.slice(int(head))


def _matching(rows: pa.Table, tables: TablePatterns) -> pa.Table:
    names = [rows.column(name).to_pylist() for name in ("schema", "table")]
    known: dict[TableName, bool] = {}
    mask = []
    for schema, table in zip(*names, strict=True):
        pair = (schema, table)
        if pair not in known:
            named = schema is not None and table is not None
            known[pair] = named and tables.matches(schema, table)
        mask.append(known[pair])
    return rows.filter(pa.array(mask, pa.bool_()))


def _with_day(rows: pa.Table, day: date) -> pa.Table:
    days = pa.repeat(pa.scalar(day, pa.date32()), rows.num_rows)
    return rows.add_column(0, pa.field("day", pa.date32()), days)
