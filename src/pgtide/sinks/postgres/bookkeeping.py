"""What pgtide keeps in a target database, in its schema ``pgtide``: above all how far it came."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

from psycopg import sql

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection

SCHEMA = "pgtide"

# Whatever is noted of a pipeline's tables, one by one.
_NOTES = (
    *("after_rows", "conflicts", "left_out", "loaded", "loads", "parked", "ranges", "selections"),
    *("skipped", "unselected"),
)


def prepare(connection: SqlConnection) -> None:
    """Make the tables of ``bookkeeping.sql``, unless they are there."""
    row = connection.execute("SELECT to_regclass('pgtide.checks') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        script = files("pgtide.sinks.postgres").joinpath("bookkeeping.sql").read_bytes()
        connection.execute(script)


def forget(connection: SqlConnection, pipeline: str) -> None:
    """Forget what a pipeline has noted of tables that are gone, and how far they were."""
    for table in _NOTES:
        query = sql.SQL("DELETE FROM pgtide.{} WHERE pipeline = {}")
        connection.execute(query.format(sql.Identifier(table), pipeline))
    connection.execute(
        "DELETE FROM pgtide.progress WHERE starts_with(pipeline, %s) OR starts_with(pipeline, %s)",
        [table_scope(pipeline, ""), f"{pipeline}/"],  # of tables apart, and on their way back
    )


def read_progress(
    connection: SqlConnection, pipeline: str, lock: Literal["", "FOR SHARE", "FOR UPDATE"] = ""
) -> Position:
    """The last position that is in the target; the very first when there is none."""
    query = "SELECT lsn::text, seq FROM pgtide.progress WHERE pipeline = %s "
    row = connection.execute((query + lock).encode(), [pipeline]).fetchone()
    return Position(Lsn(0)) if row is None else Position(Lsn.parse(row[0]), row[1])


def target_position(connection: SqlConnection, pipeline: str) -> Position | None:
    """The same of a target that may not have begun: None when nothing was ever written to it."""
    row = connection.execute("SELECT to_regclass('pgtide.progress') IS NOT NULL").fetchone()
    return read_progress(connection, pipeline) if row is not None and row[0] else None


def lock_progress(connection: SqlConnection, pipeline: str, log: str) -> Position:
    """How far it is, for a writer: nobody else goes on before this transaction ends.

    A position of another log means nothing in this one: TargetError.
    """
    connection.execute(
        "INSERT INTO pgtide.progress (pipeline, lsn, seq, log) VALUES (%s, '0/0', 0, %s)"
        " ON CONFLICT DO NOTHING",
        [pipeline, log],
    )
    query = "SELECT lsn::text, seq, log FROM pgtide.progress WHERE pipeline = %s FOR UPDATE"
    row = connection.execute(query, [pipeline]).fetchone()
    assert row is not None, "it was made if it was not there"
    if row[2] != log:
        raise TargetError(
            "the target follows another log",
            detail=f"Pipeline {pipeline} has brought it what {row[2]} holds, this is {log}.",
            hint="Begin with an empty database: pgtide snapshot --schema; or give the pipeline "
            "another name, if the target is to have both.",
        )
    return Position(Lsn.parse(row[0]), row[1])


def expect_progress(pipeline: str, found: Position, reached: Position) -> None:
    """Make sure that nobody else has brought the target further meanwhile."""
    if found != reached:
        raise TargetUnavailable(
            "somebody else writes to the target",
            detail=f"Pipeline {pipeline} was at {reached}, and is at {found}.",
            hint="Let one process run the pipeline: pgtide status",
        )


def tables_ahead(connection: SqlConnection, pipeline: str) -> set[Lsn]:
    """Where tables on their own are that have come further than the pipeline as a whole."""
    found = connection.execute(
        "SELECT t.lsn::text FROM pgtide.progress t LEFT JOIN pgtide.progress p ON p.pipeline = %s"
        " WHERE starts_with(t.pipeline, %s)"
        " AND (t.lsn, t.seq) > (coalesce(p.lsn, '0/0'), coalesce(p.seq, 0))",
        [pipeline, table_scope(pipeline, "")],
    ).fetchall()
    return {Lsn.parse(lsn) for (lsn,) in found}


def table_scope(pipeline: str, tables: str) -> str:
    """Under which name tables that are written on their own say how far they are."""
    return f"{pipeline}#{tables}"


def write_progress(connection: SqlConnection, pipeline: str, position: Position, log: str) -> None:
    """Say how far the target is, in the transaction that brought it there."""
    connection.execute(
        """INSERT INTO pgtide.progress (pipeline, lsn, seq, log) VALUES (%s, %s, %s, %s)
           ON CONFLICT (pipeline) DO UPDATE
           SET lsn = excluded.lsn, seq = excluded.seq, log = excluded.log,
               applied_at = clock_timestamp()""",
        [pipeline, str(position.lsn), position.seq, log],
    )
