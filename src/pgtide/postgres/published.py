"""What a publication sends of a table: columns and rows, so that a copy has the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Shape


@dataclass(frozen=True, slots=True)
class Published:
    """The part of a table that is published."""

    columns: frozenset[str] | None = None  # None: all
    generated: bool = False  # whether all includes what is generated and stored
    row_filter: str | None = None  # an SQL condition

    def of(self, shape: Shape) -> Shape:
        """The layout with the columns that are sent."""
        sent = tuple(
            column
            for column in shape.columns
            if (
                column.name in self.columns
                if self.columns is not None
                else self.generated or not column.generated
            )
        )
        return replace(shape, columns=sent)


def read_published(conn: SqlConnection, publications: Sequence[str], oid: int) -> Published:
    """What is sent of a table that is published, be it by itself or with all others.

    Leaves are published, not roots: a list or filter of the root's says nothing about them.
    """
    version = conn.info.server_version
    stored = version >= 180_000 and _stored(conn, publications)
    if version < 150_000:
        return Published()
    found = conn.execute(
        """
        SELECT (SELECT array_agg(a.attname::text) FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs)),
               pg_catalog.pg_get_expr(r.prqual, r.prrelid)
        FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
        WHERE p.pubname = ANY (%s) AND r.prrelid = %s
        """,
        [list(publications), oid],
    ).fetchall()
    # The server sends the columns of any of them, and rows that one of them lets pass.
    lists = [names for names, _ in found]
    filters = [condition for _, condition in found]
    return Published(
        columns=None if None in lists or not lists else frozenset().union(*lists),
        generated=stored,
        row_filter=None
        if None in filters or not filters
        else " OR ".join(f"({condition})" for condition in filters),
    )


def read_column_lists(
    conn: SqlConnection, publications: Sequence[str]
) -> dict[int, frozenset[int]]:
    """The attnums that are sent, of tables that are published with a list of columns."""
    if conn.info.server_version < 150_000:
        return {}
    found = conn.execute(
        """
        SELECT r.prrelid::bigint, r.prattrs::smallint[]
        FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
        WHERE p.pubname = ANY (%s) AND r.prattrs IS NOT NULL
        """,
        [list(publications)],
    )
    lists: dict[int, frozenset[int]] = {}
    for oid, attnums in found:
        lists[oid] = lists.get(oid, frozenset()) | frozenset(attnums)
    return lists


def _stored(conn: SqlConnection, publications: Sequence[str]) -> bool:
    row = conn.execute(
        "SELECT bool_or(pubgencols = 's') FROM pg_catalog.pg_publication WHERE pubname = ANY (%s)",
        [list(publications)],
    ).fetchone()
    return bool(row and row[0])
