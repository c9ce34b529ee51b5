"""Which tables refer to which, and an order in which those that are referred to come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pgtide.postgres.connection import SqlConnection

_REFERENCES = """
SELECT DISTINCT conrelid::bigint, confrelid::bigint FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND conparentid = 0 AND conrelid = ANY (%s::oid[])
  AND confrelid = ANY (%s::oid[]) AND conrelid <> confrelid
"""


def read_references(conn: SqlConnection, tables: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of tables of which the first refers to the second, itself left out."""
    if len(tables) < 2:
        return []
    return [(child, parent) for child, parent in conn.execute(_REFERENCES, [tables, tables])]


def parents_first(tables: Iterable[int], references: Iterable[tuple[int, int]]) -> list[int]:
    """The tables as they come, but none before one that it refers to.

    Tables that refer to each other come in any order.
    """
    parents: Mapping[int, set[int]] = {table: set() for table in tables}
    for child, parent in references:
        parents[child].add(parent)
    ordered: dict[int, None] = {}

    def visit(table: int, above: frozenset[int]) -> None:
        if table in ordered or table in above:
            return
        for parent in sorted(parents[table]):
            visit(parent, above | {table})
        ordered[table] = None

    for table in parents:
        visit(table, frozenset())
    return list(ordered)
