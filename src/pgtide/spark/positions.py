"""Where rows of the log are, as conditions on their columns ``lsn`` and ``seq``."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.position import Position


def before(position: Position) -> Column:
    """Rows before a position."""
    lsn, seq = F.col("lsn"), F.col("seq")
    return (lsn < int(position.lsn)) | ((lsn == int(position.lsn)) & (seq < position.seq))


def at_or_after(position: Position) -> Column:
    """Rows from a position on."""
    lsn, seq = F.col("lsn"), F.col("seq")
    return (lsn > int(position.lsn)) | ((lsn == int(position.lsn)) & (seq >= position.seq))


def at_or_before(position: Position) -> Column:
    """Rows up to a position, itself included."""
    lsn, seq = F.col("lsn"), F.col("seq")
    return (lsn < int(position.lsn)) | ((lsn == int(position.lsn)) & (seq <= position.seq))
