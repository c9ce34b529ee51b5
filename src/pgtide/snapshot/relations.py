"""Which relations hold the rows of a table: itself, or the leaves of a partitioned one."""

from __future__ import annotations

from collections.abc import Sequence

from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError, TableGone
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection

# Partitions that are foreign tables, or not logged, are among those that a list publishes. A
# partitioned table has no rows: it is asked for only while it has no partitions either.
_SENT = """
SELECT c.oid::bigint
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) AND (
    c.relkind = 'p' OR c.relkind = 'r' AND c.relpersistence = 'p' AND EXISTS (
        SELECT FROM pg_catalog.pg_publication_tables p
        WHERE p.pubname = ANY (%s) AND p.schemaname = n.nspname AND p.tablename = c.relname))
"""


def table_named(conn: SqlConnection, table: str, patterns: TablePatterns) -> int:
    """The oid of a captured table that has this name now."""
    named = [shape for shape in read_layouts(conn).values() if shape.name == table]
    if not named:
        raise TableGone(
            f"there is no table {table}", hint="Write it as schema.table, without quotes."
        )
    if not selects(patterns, named[0]):
        raise ConfigError(
            f"{table} is not captured", hint="Add it to source.tables, then run: pgtide init"
        )
    return named[0].oid


def relations_of(
    conn: SqlConnection, oid: int, patterns: TablePatterns, publications: Sequence[str]
) -> list[int]:
    """The oids of the relations to read, in a fixed order; by whatever name the table has by now.

    If it is gone there is nothing to read, and the log says so itself. What is not published is
    not read: the log would never hear of it again.
    """
    shape = read_layouts(conn, oid=oid).get(oid)
    if shape is None or not selects(patterns, shape):
        return []
    leaves = conn.execute(
        "SELECT relid::oid::bigint FROM pg_catalog.pg_partition_tree(%s::oid) WHERE isleaf"
        " ORDER BY 1",
        [oid],
    ).fetchall()
    holding = [leaf for (leaf,) in leaves] or [oid]
    sent = {sent for (sent,) in conn.execute(_SENT, [holding, list(publications)])}
    return [each for each in holding if each in sent]
