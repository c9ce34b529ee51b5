"""What pgtide keeps in a target database, in its schema ``pgtide``: above all how far it came."""

from __future__ import annotations

from importlib.resources import files

from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection

SCHEMA = "pgtide"


def prepare(connection: SqlConnection) -> None:
    """Make the tables of ``bookkeeping.sql``, unless they are there."""
    row = connection.execute("SELECT to_regclass('pgtide.after_rows') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        script = files("pgtide.sinks.postgres").joinpath("bookkeeping.sql").read_bytes()
        connection.execute(script)


def read_progress(connection: SqlConnection, pipeline: str, *, lock: bool = False) -> Position:
    """The last position that is in the target; the very first when there is none."""
    query = "SELECT lsn::text, seq FROM pgtide.progress WHERE pipeline = %s"
    row = connection.execute(query + (" FOR UPDATE" if lock else ""), [pipeline]).fetchone()
    return Position(Lsn(0)) if row is None else Position(Lsn.parse(row[0]), row[1])


def write_progress(connection: SqlConnection, pipeline: str, position: Position, log: str) -> None:
    """Say how far the target is, in the transaction that brought it there."""
    connection.execute(
        """INSERT INTO pgtide.progress (pipeline, lsn, seq, log) VALUES (%s, %s, %s, %s)
           ON CONFLICT (pipeline) DO UPDATE
           SET lsn = excluded.lsn, seq = excluded.seq, log = excluded.log,
               applied_at = clock_timestamp()""",
        [pipeline, str(position.lsn), position.seq, log],
    )
