"""What a target has not taken as the source had it: conflicts, and DDL that was left out.

Both are listed in the target, in the transaction that settled them, so that a batch which comes
again counts nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pgtide.position import Position
from pgtide.postgres.connection import SqlConnection


@dataclass(frozen=True)
class Tallies:
    """How much there is of both."""

    conflicts: dict[str, int] = field(default_factory=dict)  # by table
    left_out: dict[str, int] = field(default_factory=dict)  # statements, by reason


def note_left_out(
    connection: SqlConnection, pipeline: str, at: Position, tag: str, reason: str
) -> None:
    """List a statement that is not replayed."""
    connection.execute(
        "INSERT INTO pgtide.left_out (pipeline, lsn, seq, tag, reason)"
        " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [pipeline, str(at.lsn), at.seq, tag, reason],
    )


def read_tallies(connection: SqlConnection, pipeline: str) -> Tallies:
    """Of a target that may not have begun."""
    query = "SELECT to_regclass('pgtide.left_out') IS NOT NULL"
    if connection.execute(query).fetchone() != (True,):
        return Tallies()
    conflicts = connection.execute(
        """SELECT "schema" || '.' || "table", count(*) FROM pgtide.conflicts"""
        " WHERE pipeline = %s GROUP BY 1 ORDER BY 1",
        [pipeline],
    ).fetchall()
    left_out = connection.execute(
        "SELECT reason, count(*) FROM pgtide.left_out WHERE pipeline = %s GROUP BY 1 ORDER BY 1",
        [pipeline],
    ).fetchall()
    return Tallies(dict(conflicts), dict(left_out))
