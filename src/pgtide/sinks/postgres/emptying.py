"""TRUNCATE: the log names tables that have rows, Postgres wants all that refer to them."""

from __future__ import annotations

from collections.abc import Sequence

from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.target_tables import TargetTable

# Those that the source's command emptied too: of a partitioned table the log has the partitions,
# of one without any, or unlogged, nothing. Any other that refers has rows, and Postgres refuses.
_WITH_THEM = """
WITH RECURSIVE emptied AS (
    SELECT unnest(%(given)s::oid[]) AS oid
    UNION
    SELECT k.conrelid FROM emptied JOIN pg_catalog.pg_constraint k ON k.confrelid = emptied.oid
    WHERE k.contype = 'f' AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_class c
        WHERE c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(k.conrelid)
                        UNION SELECT k.conrelid)
          AND c.relkind <> 'p' AND c.relpersistence = 'p' AND c.oid <> ALL (%(given)s::oid[]))
)
SELECT oid::regclass::text FROM emptied WHERE oid <> ALL (%(given)s::oid[]) ORDER BY 1
"""


def truncate(connection: SqlConnection, tables: Sequence[TargetTable], *, restart: bool) -> None:
    """Empty tables together, and start their identities anew if the source did so."""
    given = {"given": [table.oid for table in tables]}
    # Tables that inherit from one are named themselves, if they were emptied as well.
    names = [table.rows for table in tables]
    names += [name for (name,) in connection.execute(_WITH_THEM, given)]
    how = " RESTART IDENTITY" if restart else ""
    connection.execute(f"TRUNCATE {', '.join(names)}{how}".encode())
