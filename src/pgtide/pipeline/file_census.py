"""The census of rows by their files, without Spark, where these are small or say enough.

A snapshot is most of a new log, and its rows are alike: each row group is of one shape and says
between which positions it lies. So nothing of them has to be looked at to count them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pgtide.log.order import Piece, open_pieces
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.pipeline.census import BARRIERS, Census, Group, census_of, in_utc, mark_of
from pgtide.pipeline.cutting import Count
from pgtide.position import Lsn, Position

READ = "read"
FEW_ROWS = 1000  # of a file, which are looked at
_COLUMNS = ["lsn", "seq", "shape", "op", "committed_at", "before", "unchanged", "payload", "last"]
_TOLD = ("shape", "committed_at")


def census_of_files(
    changes: Storage, files: Sequence[DataFile], low: Position, high: Position
) -> Census | None:
    """The census of all rows between two positions; None if files do not say enough.

    They may be large and hold other events than reads, cross a bound, or have gone since.
    """
    mine = [file for file in files if file.high >= low and file.low <= high]
    inside = all(file.low >= low and file.high <= high for file in mine)
    if not mine or not inside or not all(f.op == READ or f.rows <= FEW_ROWS for f in mine):
        return None
    groups: list[Group] = []
    for file in mine:
        try:
            pieces = open_pieces(changes, file)
        except FileNotFoundError:
            return None
        for piece in pieces:
            if file.rows <= FEW_ROWS:
                groups += _looked_at(piece)
            elif (told := _told(piece)) is not None:
                groups.append(told)
            else:
                return None
    return census_of(groups)


def _looked_at(piece: Piece) -> Iterator[Group]:
    """The rows one by one."""
    for row in piece.read(_COLUMNS).to_pylist():
        at, op, shape = Position(Lsn(row["lsn"]), row["seq"]), row["op"], row["shape"]
        old = op == "update" and row["before"] is not None
        count = Count(shape, op, 1, at, at, old, tuple(sorted(row["unchanged"] or ())))
        marks = (mark_of(op, shape, row),) if op in BARRIERS else ()
        yield Group(count, in_utc(row["committed_at"]), row["last"], marks)


def _told(piece: Piece) -> Group | None:
    """A row group of reads as it says itself; only those of snapshots tell their shape.

    None of these is the last of its transaction.
    """
    assert isinstance(piece.source, tuple), "a row group of a file"
    file, number = piece.source
    group, bounds = file.metadata.row_group(number), dict[str, Any]()
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in _TOLD and column.is_stats_set:
            bounds[column.path_in_schema] = column.statistics
    if len(bounds) < len(_TOLD) or piece.low.lsn != piece.high.lsn:
        return None
    shape, at = (bounds[name] for name in _TOLD)
    if not shape.has_min_max or not at.has_min_max or shape.min != shape.max:
        return None
    count = Count(shape.min, READ, piece.rows, piece.low, piece.high, old_rows=False, unsent=())
    return Group(count, in_utc(at.max), last=False)
