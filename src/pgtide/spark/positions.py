"""Where rows are, as conditions on the columns of their positions: in the log ``lsn``, ``seq``."""

from __future__ import annotations

from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.position import Position

Place: TypeAlias = tuple[Column, Column]  # a row's LSN and its place in the transaction


def before(position: Position, place: Place | None = None) -> Column:
    """Rows before a position."""
    lsn, seq = place or _in_log()
    return (lsn < int(position.lsn)) | ((lsn == int(position.lsn)) & (seq < position.seq))


def at_or_after(position: Position, place: Place | None = None) -> Column:
    """Rows from a position on."""
    lsn, seq = place or _in_log()
    return (lsn > int(position.lsn)) | ((lsn == int(position.lsn)) & (seq >= position.seq))


def at_or_before(position: Position) -> Column:
    """Rows up to a position, itself included."""
    return before(position.next)


def _in_log() -> Place:
    return F.col("lsn"), F.col("seq")
