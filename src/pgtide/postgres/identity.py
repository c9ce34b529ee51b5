"""Replica identity: whether a table's UPDATE and DELETE survive being published.

Postgres refuses an application's own UPDATE or DELETE on a published table
whose old rows cannot be named. Nothing here changes a table; it says which
tables are concerned and what ALTER would help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from pgtide.config.patterns import TablePatterns, is_system_schema
from pgtide.errors import IdentityMissing
from pgtide.postgres.connection import SqlConnection

# The server's own rule (RelationGetReplicaIndex): valid, and not deferrable. Virtual generated
# columns (18) are never published, and an identity that contains one is refused.
_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text,
       coalesce(r.oid, 0)::bigint, coalesce(rn.nspname, ''), coalesce(r.relname, ''),
       CASE WHEN c.relkind = 'p' THEN true
            WHEN c.relreplident = 'f' THEN NOT v.virtual
            ELSE EXISTS (
                SELECT FROM pg_index x
                WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                  AND CASE c.relreplident WHEN 'd' THEN x.indisprimary
                                          WHEN 'i' THEN x.indisreplident ELSE false END)
       END,
       NOT v.virtual, pg_has_role(c.relowner, 'USAGE')
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
CROSS JOIN LATERAL (SELECT EXISTS (
    SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped) AS virtual) v
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgtide')
ORDER BY n.nspname, c.relname
"""


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """A table that can be published, as far as publishing is concerned."""

    oid: int
    schema: str
    table: str
    kind: str  # r, or p for a partitioned table
    root_oid: int
    root_schema: str
    root_table: str
    usable: bool
    """Whether UPDATE and DELETE keep working when they are published."""
    full_helps: bool
    """Whether REPLICA IDENTITY FULL would make it usable."""
    owned: bool
    """Whether the current role may alter and publish it."""

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    @property
    def alter(self) -> str:
        """The statement that makes it usable; empty when there is none but a key."""
        if not self.full_helps:
            return ""
        template = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL")
        return template.format(self.identifier).as_string(None)

    def selected(self, patterns: TablePatterns) -> bool:
        """Whether it is captured, by its own name or by its root's."""
        return patterns.matches(self.schema, self.table) or self.by_root(patterns)

    def by_root(self, patterns: TablePatterns) -> bool:
        """Whether it is captured because its partitioned root is."""
        return self.root_oid != 0 and patterns.matches(self.root_schema, self.root_table)


def read_identities(conn: SqlConnection) -> list[TableIdentity]:
    """Every table that a publication could carry, by name."""
    tables = [TableIdentity(*row) for row in conn.execute(_TABLES)]
    return [table for table in tables if not is_system_schema(table.schema)]


def missing(tables: Sequence[TableIdentity]) -> IdentityMissing:
    """The error that names the tables and what to run for each."""
    names = ", ".join(table.name for table in tables)
    alters = [f"{table.alter};" for table in tables if table.full_helps]
    keys = [table.name for table in tables if not table.full_helps]
    hint = ["Give each a primary key, or run:", *alters] if alters else []
    if keys:
        hint.append(
            f"Add a primary key to {', '.join(keys)}:"
            " FULL does not work with virtual generated columns."
        )
    hint.append("Or set source.keyless to full or insert.")
    return IdentityMissing(
        f"{len(tables)} table{'s' if len(tables) > 1 else ''} without usable replica identity",
        detail=f"Publishing would make UPDATE and DELETE fail on {names}.",
        hint="\n".join(hint),
    )
