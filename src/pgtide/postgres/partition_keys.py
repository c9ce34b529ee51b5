"""The line of ``pgtide check`` about partitions with rows that their keys do not tell apart.

A key that lacks the columns by which a table is divided is unique within a partition only. Tables
of a lake that hold states have one row per key, so they would have one of two such rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pgtide.config.model import Pipeline
from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import DeltaSettings
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.verdict import Check, warn

# What divides a table depends on its columns, those in expressions too. Partitions know columns by
# their names: they may have them in another order.
_OVERLAPPING = """
SELECT n.nspname, r.relname, min(c.oid::regclass::text)
FROM pg_class c
JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
JOIN pg_namespace n ON n.oid = r.relnamespace
JOIN pg_index x ON x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
     AND CASE c.relreplident WHEN 'i' THEN x.indisreplident ELSE x.indisprimary END
WHERE c.relispartition AND c.relkind = 'r' AND c.relpersistence = 'p' AND EXISTS (
    SELECT FROM pg_partition_ancestors(c.oid) AS a (relid)
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = d.classid
         AND d.objid = a.relid AND d.refobjid = a.relid AND d.refobjsubid = 0 AND d.deptype = 'i'
    JOIN pg_attribute p ON p.attrelid = a.relid AND p.attnum = d.objsubid
    WHERE a.relid <> c.oid AND NOT EXISTS (
        SELECT FROM pg_attribute q
        WHERE q.attrelid = c.oid AND q.attname = p.attname
          AND q.attnum = ANY ((x.indkey::smallint[])[0:x.indnkeyatts - 1])))
GROUP BY n.nspname, r.relname
ORDER BY n.nspname, r.relname
"""


def check_partition_keys(conn: SqlConnection, pipelines: Mapping[str, Pipeline]) -> Iterator[Check]:
    """A warning for each table of which a lake may lose rows so; nothing where all is well."""
    sinks = {name: pipeline.sink for name, pipeline in pipelines.items()}
    modes = {n: s.mode for n, s in sinks.items() if isinstance(s, DeltaSettings)}
    lakes = [(name, mode) for name, mode in modes.items() if mode in ("mirror", "scd2")]
    tables = conn.execute(_OVERLAPPING).fetchall() if lakes else []
    for name, mode in lakes:
        patterns = TablePatterns(pipelines[name].tables)
        for schema, table, partition in tables:
            if patterns.matches(schema, table):
                yield warn(
                    "keys",
                    f"{name}: the key of {partition} does not tell its rows from those of other "
                    f"partitions of {schema}.{table}: a {mode} table has one of two with the same",
                    f"Give {schema}.{table} a primary key, which has the columns that divide it.",
                )
