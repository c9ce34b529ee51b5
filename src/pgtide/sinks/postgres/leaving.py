"""Partitions that have left their table at the source.

Where the command that took them away is replayed, nothing is left to do. Where it is not, because
``sink.ddl`` excludes it or somebody left it out, the target's table still has their rows.
"""

from __future__ import annotations

from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.target_tables import quoted_name
from pgtide.spark.layout import TableName

_IN_PLACE = """
SELECT r.relkind = 'p', EXISTS (
    SELECT FROM pg_catalog.pg_partition_ancestors(pg_catalog.to_regclass(%s)) a
    WHERE a.relid = r.oid)
FROM pg_catalog.pg_class r WHERE r.oid = pg_catalog.to_regclass(%s)
"""


def take_out(connection: SqlConnection, partition: TableName, root: TableName) -> bool:
    """Delete the rows of a partition, if it still is one; False if nobody can tell which."""
    names = [quoted_name(partition), quoted_name(root)]
    row = connection.execute(_IN_PLACE, names).fetchone()
    if row is None:
        return True
    partitioned, in_place = row
    if in_place:
        connection.execute(f"DELETE FROM {quoted_name(partition)}".encode())
    return bool(partitioned)
