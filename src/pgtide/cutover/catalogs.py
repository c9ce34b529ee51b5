"""What the source has and the target lacks: indexes and the like, and what no WAL tells of."""

from __future__ import annotations

from pgtide.config import TablePatterns
from pgtide.postgres.connection import SqlConnection

# Not NOT NULL, which is a constraint with a name from 18 on; not an index that is still being made.
_OBJECTS = """
SELECT n.nspname, c.relname, o.kind, o.name FROM (
    SELECT x.indrelid AS oid, 'index' AS kind, i.relname AS name
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indisvalid
    UNION ALL
    SELECT conrelid, 'constraint', conname FROM pg_constraint
    WHERE conrelid <> 0 AND contype <> 'n' AND convalidated
    UNION ALL
    SELECT tgrelid, 'trigger', tgname FROM pg_trigger WHERE NOT tgisinternal
) o JOIN pg_class c ON c.oid = o.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
_UNLOGGED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'u' ORDER BY 1, 2
"""


def missing_objects(
    source: SqlConnection, target: SqlConnection, patterns: list[TablePatterns]
) -> list[str]:
    """By kind and name, of tables that the patterns select."""
    have = set(target.execute(_OBJECTS))
    return sorted(
        f"{kind} {name} of {schema}.{table}"
        for schema, table, kind, name in set(source.execute(_OBJECTS)) - have
        if all(each.matches(schema, table) for each in patterns)
    )


def unlogged_tables(source: SqlConnection, patterns: list[TablePatterns]) -> list[str]:
    """Tables that the patterns mean and whose rows are never replicated."""
    return [
        f"{schema}.{table}"
        for schema, table in source.execute(_UNLOGGED)
        if all(each.matches(schema, table) for each in patterns)
    ]


def large_objects(source: SqlConnection) -> int:
    """How many there are; none is replicated."""
    row = source.execute("SELECT count(*) FROM pg_largeobject_metadata").fetchone()
    return row[0] if row else 0
