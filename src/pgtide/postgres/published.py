"""What publications send of a table: columns and rows, so that a copy has the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Shape

LIMITS_VERSION = 150_000  # lists of columns and row filters
GENERATED_VERSION = 180_000  # generated columns

# Limits of a table that another publication sends without any do not hold: it sends every row
# that one of them lets pass. Those of a partitioned table say nothing about its partitions.
_LIMITED = """
SELECT r.prrelid::bigint, r.prattrs::smallint[], pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication_rel r
JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid
WHERE p.pubname = ANY (%(names)s) AND NOT EXISTS (
    SELECT FROM pg_publication o
    WHERE o.pubname = ANY (%(names)s) AND (o.puballtables OR EXISTS (
        SELECT FROM pg_publication_namespace s
        WHERE s.pnpubid = o.oid AND s.pnnspid = c.relnamespace)))
"""


@dataclass(frozen=True, slots=True)
class Published:
    """The part of a table that is published."""

    attnums: frozenset[int] | None = None  # None: all
    generated: bool = False  # whether all includes what is generated and stored
    row_filter: str | None = None  # an SQL condition

    def of(self, shape: Shape) -> Shape:
        """The layout with the columns that are sent."""
        sent = tuple(
            column
            for column in shape.columns
            if (
                column.attnum in self.attnums
                if self.attnums is not None
                else self.generated or not column.generated
            )
        )
        return replace(shape, columns=sent)


@dataclass(frozen=True, slots=True)
class PublishedTables:
    """The part of each table that is published, if the table is."""

    limited: dict[int, Published]
    generated: bool

    def of(self, oid: int) -> Published:
        return self.limited.get(oid) or Published(generated=self.generated)


def read_published(conn: SqlConnection, publications: Sequence[str]) -> PublishedTables:
    """What these publications send, taken together."""
    version = conn.info.server_version
    generated = version >= GENERATED_VERSION and _sends_generated(conn, publications)
    if version < LIMITS_VERSION:
        return PublishedTables({}, generated)
    found: dict[int, list[tuple[list[int] | None, str | None]]] = {}
    for oid, attnums, row_filter in conn.execute(_LIMITED, {"names": list(publications)}):
        found.setdefault(oid, []).append((attnums, row_filter))
    limited = {oid: _together(limits, generated) for oid, limits in found.items()}
    return PublishedTables(limited, generated)


def _together(
    limits: Sequence[tuple[Sequence[int] | None, str | None]], generated: bool
) -> Published:
    lists = [attnums for attnums, _ in limits if attnums is not None]
    filters = [row_filter for _, row_filter in limits if row_filter is not None]
    return Published(
        attnums=frozenset().union(*lists) if len(lists) == len(limits) else None,
        generated=generated,
        row_filter=" OR ".join(f"({condition})" for condition in filters)
        if len(filters) == len(limits)
        else None,
    )


def _sends_generated(conn: SqlConnection, publications: Sequence[str]) -> bool:
    row = conn.execute(
        "SELECT bool_or(pubgencols = 's') FROM pg_publication WHERE pubname = ANY (%s)",
        [list(publications)],
    ).fetchone()
    return bool(row and row[0])
