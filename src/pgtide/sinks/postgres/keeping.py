"""What a target keeps of its pipeline's state: which tables it has, and which of them lack rows.

Progress is one position for all tables. Those that are parked, or are not selected, are the
exceptions: were they known to the state alone, a state that is lost, or older than the target,
would have their rows passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from psycopg import sql

from pgtide.pipeline.batch import Batch
from pgtide.pipeline.state import Parked
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.rules import TableRules
from pgtide.sinks import Kept
from pgtide.sinks.postgres.loading import is_empty
from pgtide.sinks.postgres.stages import drop_stages
from pgtide.sinks.postgres.target_tables import read_tables
from pgtide.spark.layout import TableName


def read_kept(connection: SqlConnection, pipeline: str) -> Kept:
    """What is known of a pipeline's tables."""
    query = "SELECT tables FROM pgtide.selections WHERE pipeline = %s"
    selected = connection.execute(query, [pipeline]).fetchone()
    query = (
        'SELECT "table", lsn::text, seq, message, detail, hint, since FROM pgtide.parked'
        " WHERE pipeline = %s"
    )
    parked = {
        name: Parked(Position(Lsn.parse(lsn), seq), *why)
        for name, lsn, seq, *why in connection.execute(query, [pipeline]).fetchall()
    }
    query = 'SELECT "table", lsn::text, seq FROM pgtide.unselected WHERE pipeline = %s'
    left = {
        name: Position(Lsn.parse(lsn), seq)
        for name, lsn, seq in connection.execute(query, [pipeline]).fetchall()
    }
    return Kept(selected[0] if selected else None, parked, left)


def write_kept(connection: SqlConnection, pipeline: str, kept: Kept) -> None:
    """Know this instead; what is noted of a table that is still parked may be newer."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO pgtide.selections (pipeline, tables) VALUES (%s, %s)"
            " ON CONFLICT (pipeline) DO UPDATE SET tables = excluded.tables",
            [pipeline, kept.tables],
        )
        for table, names in (("parked", kept.parked), ("unselected", kept.left)):
            query = sql.SQL(
                'DELETE FROM pgtide.{} WHERE pipeline = %s AND NOT "table" = ANY (%s)'
            ).format(sql.Identifier(table))
            connection.execute(query, [pipeline, list(names)])
        note_parked(connection, pipeline, kept.parked)
        if not kept.parked:
            _forget_resumptions(connection, pipeline)


def _forget_resumptions(connection: SqlConnection, pipeline: str) -> None:
    """Let go of what tables on their way back had to themselves: none is."""
    query = "DELETE FROM pgtide.progress WHERE starts_with(pipeline, %s) RETURNING pipeline"
    for (scope,) in connection.execute(query, [f"{pipeline}/"]).fetchall():
        drop_stages(connection, scope)


def note_tables(connection: SqlConnection, scope: str, batch: Batch, high: Position) -> None:
    """Note tables that are not as far as the progress says, and those that have come nearer."""
    pipeline = batch.scope.pipeline
    if scope == pipeline and batch.lacking:
        note_parked(connection, pipeline, batch.lacking)
    nearer = (batch.only or frozenset()) - batch.parked
    if nearer:
        note_caught_up(connection, pipeline, nearer, high)


def note_parked(connection: SqlConnection, pipeline: str, parked: Mapping[str, Parked]) -> None:
    """Note tables that lack rows from a position on, in the transaction that passes over these."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO pgtide.parked VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
            ' ON CONFLICT (pipeline, "table") DO NOTHING',
            [
                (
                    *(pipeline, name, str(one.position.lsn), one.position.seq),
                    *(one.message, one.detail, one.hint, one.since),
                )
                for name, one in parked.items()
            ],
        )


def note_caught_up(
    connection: SqlConnection, pipeline: str, tables: Collection[str], position: Position
) -> None:
    """Say that parked tables lack only what is behind a position, which they have come to."""
    lsn, seq = str(position.next.lsn), position.next.seq
    connection.execute(
        "UPDATE pgtide.parked SET lsn = %s::pg_lsn, seq = %s"
        ' WHERE pipeline = %s AND "table" = ANY (%s) AND (lsn, seq) < (%s::pg_lsn, %s)',
        [lsn, seq, pipeline, list(tables), lsn, seq],
    )


def note_left(
    connection: SqlConnection, pipeline: str, table: TableRules, position: Position
) -> None:
    """Note where a table leaves the selection, and what the target has of it then."""
    connection.execute(
        "INSERT INTO pgtide.unselected VALUES (%s, %s, %s, %s, %s, %s)"
        ' ON CONFLICT (pipeline, "table") DO UPDATE SET (lsn, seq, relation, has_rows)'
        " = (excluded.lsn, excluded.seq, excluded.relation, excluded.has_rows)",
        [
            *(pipeline, ".".join(table.source), str(position.lsn), position.seq),
            *_look(connection, table.target),
        ],
    )


def is_as_it_left(connection: SqlConnection, pipeline: str, table: TableRules) -> bool:
    """Whether a table may have the rows that it left with: nobody made it anew, or emptied it."""
    noted = connection.execute(
        "SELECT relation::bigint, has_rows FROM pgtide.unselected"
        ' WHERE pipeline = %s AND "table" = %s',
        [pipeline, ".".join(table.source)],
    ).fetchone()
    if noted is None:
        return True
    relation, has_rows = _look(connection, table.target)
    return bool(relation == noted[0] and has_rows >= noted[1])


def _look(connection: SqlConnection, name: TableName) -> tuple[int | None, bool]:
    """The relation that a table is, and whether it has rows."""
    known = read_tables(connection, [name]).get(name)
    return (None, False) if known is None else (known.oid, not is_empty(connection, name))
