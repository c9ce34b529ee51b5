"""Moments of the log as users give them: a position, a time, or either as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.errors import ConfigError
from pgtide.position import Position
from pgtide.spark.positions import before

Moment: TypeAlias = Position | datetime | str | None


def moment_of(as_of: Moment, name: str = "as_of") -> Position | datetime | None:
    """What was meant by the argument of that name; ConfigError when that is nothing.

    A time without a zone is UTC.
    """
    try:
        if isinstance(as_of, str):
            as_of = Position.parse(as_of) if "/" in as_of else datetime.fromisoformat(as_of)
    except (ValueError, ConfigError):
        pass  # told below
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        return as_of.replace(tzinfo=UTC)
    if as_of is None or isinstance(as_of, Position | datetime):
        return as_of
    raise ConfigError(
        f"{name} cannot be {as_of!r}",
        hint="Give a time, such as 2026-01-31 12:00:00 (UTC), or a position: 16/B374D848:3.",
    )


def until(as_of: Moment) -> Column:
    """The rows that count at a moment: a position is the first that does not, a time the last."""
    as_of = moment_of(as_of)
    if as_of is None:
        return F.lit(True)
    if isinstance(as_of, Position):
        return before(as_of)
    micros = int(as_of.timestamp() * 1_000_000)
    return F.col("committed_at") <= F.timestamp_micros(F.lit(micros))
