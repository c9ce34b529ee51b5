"""Foreign keys that look when all rows of a segment are there.

At the source they look behind each statement, and the log does not say where one ends: a row may
refer to one that came behind it. Commands stand between statements, so at the end of a segment
all is as it must be. Postgres defers only what is DEFERRABLE; altering that takes a lock that keeps
readers waiting, so it is done only for rows that were refused otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import sql

from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.deferred import settle
from pgtide.sinks.postgres.target_tables import TargetTable

FOREIGN_KEY = "23503"
"""SQLSTATE of a row that refers to none."""

# Of both sides: a row may also go before the one that takes its place. Not those that partitions
# have from their table. Who does not own a table cannot alter it.
_KEYS = """
SELECT DISTINCT n.nspname, c.relname, k.conname FROM unnest(%s::oid[]) AS given
CROSS JOIN LATERAL (
    SELECT relid FROM pg_catalog.pg_partition_tree(given) UNION SELECT given
) AS mine
JOIN pg_catalog.pg_constraint k ON mine.relid IN (k.conrelid, k.confrelid)
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND NOT k.condeferrable AND k.conparentid = 0
  AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
ORDER BY 1, 2, 3
"""
_ALTER = "ALTER TABLE {}.{} ALTER CONSTRAINT {} {}"


@contextmanager
def late_keys(
    connection: SqlConnection, tables: Sequence[TargetTable]
) -> Iterator[Sequence[tuple[str, str]]]:
    """Defer the foreign keys of tables; who has done so looks at them before the end.

    The result are their names, with their schemas.
    """
    oids = [table.oid for table in tables]
    found = connection.execute(_KEYS, [oids]).fetchall()
    settle(connection)
    _alter(connection, found, "DEFERRABLE INITIALLY DEFERRED")
    yield [(schema, name) for schema, _, name in found]
    settle(connection)  # others may have rows to look at, which is in the way of altering
    _alter(connection, found, "NOT DEFERRABLE")


def _alter(connection: SqlConnection, keys: Sequence[tuple[str, str, str]], how: str) -> None:
    for names in keys:
        connection.execute(sql.SQL(_ALTER).format(*map(sql.Identifier, names), sql.SQL(how)))
