"""Where rows are, as conditions on the columns of their positions: in the log ``lsn``, ``seq``."""

from __future__ import annotations

from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.position import Position

Place: TypeAlias = tuple[Column, Column]  # a row's LSN and its place in the transaction


LAST = 2**63 - 1
"""The largest number that a column of a position holds; a user may name a later position."""


def before(position: Position, place: Place | None = None) -> Column:
    """Rows before a position."""
    lsn, seq = place or _in_log()
    at, index = min(int(position.lsn), LAST), min(position.seq, LAST)
    return (lsn < at) | ((lsn == at) & (seq < index))


def at_or_after(position: Position, place: Place | None = None) -> Column:
    """Rows from a position on."""
    lsn, seq = place or _in_log()
    return (lsn > int(position.lsn)) | ((lsn == int(position.lsn)) & (seq >= position.seq))


def at_or_before(position: Position) -> Column:
    """Rows up to a position, itself included."""
    return before(position.next)


def _in_log() -> Place:
    return F.col("lsn"), F.col("seq")
