"""Tables of the target as its own catalog has them, in whatever transaction asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from pgtide.errors import TargetError
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.operators import operator, operators_of
from pgtide.sinks.postgres.deferred import settle
from pgtide.spark.layout import TableName

_TABLES = f"""
SELECT n.nspname, c.relname, c.oid, c.relkind::text,
       (SELECT json_agg(json_build_object(
                   'name', a.attname, 'type', format_type(a.atttypid, -1),
                   'generated', a.attgenerated <> '', 'always', a.attidentity = 'a',
                   'operators', {operators_of("a.atttypid")})
               ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       EXISTS (SELECT FROM pg_catalog.pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f'),
       (SELECT json_agg(ARRAY(
                   SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid
                     AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN ROWS FROM (unnest(%s::text[]), unnest(%s::text[])) AS wanted(nspname, relname)
  ON (wanted.nspname, wanted.relname) = (n.nspname::text, c.relname::text)
WHERE c.relkind IN ('r', 'p')
"""
_CASCADES = """
SELECT conrelid, confrelid, confdeltype = 'c', confupdtype = 'c', ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = conrelid AND a.attnum = ANY (conkey)
      AND (confdeltype IN ('n', 'd') OR confupdtype IN ('c', 'n', 'd')))
FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND (confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd'))
  AND (confrelid = ANY (%s::oid[]) OR conrelid = ANY (%s::oid[]))
"""
_TRIGGERS = """
WITH mine AS (
    SELECT relid FROM pg_catalog.pg_partition_tree(%s::oid) UNION SELECT %s::oid
)
SELECT t.tgrelid::oid, 'TRIGGER', t.tgname FROM pg_catalog.pg_trigger t JOIN mine ON relid = tgrelid
LEFT JOIN pg_catalog.pg_trigger p ON p.oid = t.tgparentid
WHERE NOT t.tgisinternal AND t.tgenabled = 'O'
  AND (p.tgenabled = 'O') IS NOT TRUE  -- else it goes along with the one of its parent
UNION ALL
SELECT r.ev_class::oid, 'RULE', r.rulename
FROM pg_catalog.pg_rewrite r JOIN mine ON relid = ev_class
WHERE r.ev_enabled = 'O' AND r.rulename <> '_RETURN'
"""
_DISABLED = """
WITH noted AS (
    DELETE FROM pgtide.disabled d WHERE %s::text[] IS NULL OR d.relation IN (
        SELECT relid FROM unnest(%s::text[]) AS name
        CROSS JOIN LATERAL (
            SELECT pg_catalog.to_regclass(name) UNION
            SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(name))
        ) AS mine(relid))
    RETURNING d.relation, d.kind, d.name
)
SELECT relation::bigint, kind, name FROM noted
WHERE EXISTS (SELECT FROM pg_catalog.pg_trigger
              WHERE kind = 'TRIGGER' AND tgrelid = relation AND tgname = name AND tgenabled = 'D')
   OR EXISTS (SELECT FROM pg_catalog.pg_rewrite
              WHERE kind = 'RULE' AND ev_class = relation AND rulename = name AND ev_enabled = 'D')
"""


@dataclass(frozen=True)
class TargetColumn:
    """One column."""

    name: str
    type: str  # as format_type() prints it, without its modifier: assignment looks at that
    generated: bool
    always: bool  # GENERATED ALWAYS AS IDENTITY
    operators: str | None = None  # schema of those of its type, if that has its own

    def operator(self, sign: str) -> str:
        """What compares values of the column: the type's own one, wherever it is."""
        return operator(self.operators, sign)


@dataclass(frozen=True)
class TargetTable:
    """One table."""

    schema: str
    table: str
    oid: int
    partitioned: bool
    columns: Mapping[str, TargetColumn]
    refers: bool  # whether it has foreign keys
    unique: Sequence[Collection[str]]  # columns of which no two rows have the same values

    def is_unique(self, names: Collection[str]) -> bool:
        """Whether the table itself sees to it that no two rows have the same in these columns."""
        return any({*names} >= {*columns} for columns in self.unique)

    @property
    def name(self) -> str:
        """Its name, quoted."""
        return quoted_name((self.schema, self.table))

    @property
    def rows(self) -> str:
        """How UPDATE and DELETE name it: tables that inherit from it have rows of their own."""
        return self.name if self.partitioned else f"ONLY {self.name}"


def read_tables(
    connection: SqlConnection, names: Iterable[TableName]
) -> dict[TableName, TargetTable]:
    """The tables that exist, by name."""
    wanted = sorted(set(names))
    arrays = [[name[part] for name in wanted] for part in (0, 1)]
    found = {}
    for schema, table, oid, kind, columns, refers, unique in connection.execute(
        _TABLES.encode(), arrays
    ):
        known = {c["name"]: TargetColumn(**c) for c in columns or ()}
        found[schema, table] = TargetTable(
            schema, table, oid, kind == "p", known, refers, unique or ()
        )
    return found


def missing_table(name: TableName, pipeline: str) -> TargetError:
    """The error for a table that has rows to get and does not exist."""
    return TargetError(
        f"the target has no table {'.'.join(name)}",
        detail="Nothing in the log has created it.",
        hint=f"Create the target's schema: pgtide snapshot --schema --pipeline {pipeline}; "
        "or make the table there, or leave it out of the pipeline's tables.",
    )


@dataclass(frozen=True)
class Cascades:
    """Tables whose rows go or change with others, by oid."""

    parents: frozenset[int]  # ON DELETE CASCADE
    children: frozenset[int]
    followers: frozenset[int]  # ON UPDATE CASCADE
    changers: frozenset[int]  # whatever else is done, the row stays
    changing: Mapping[int, frozenset[str]]  # with its columns


def read_cascades(connection: SqlConnection, tables: Sequence[TargetTable]) -> Cascades:
    """What rows of these tables take along when they are deleted or get another key."""
    oids = [table.oid for table in tables]
    found = connection.execute(_CASCADES, [oids, oids]).fetchall()
    changing: dict[int, frozenset[str]] = {}
    for child, _, _, _, columns in found:
        if columns:
            changing[child] = changing.get(child, frozenset()) | {*columns}
    return Cascades(
        frozenset(parent for _, parent, deletes, *_ in found if deletes),
        frozenset(child for child, _, deletes, *_ in found if deletes),
        frozenset(child for child, _, _, updates, _ in found if updates),
        frozenset(parent for _, parent, _, _, columns in found if columns),
        changing,
    )


def disable_triggers(connection: SqlConnection, table: TargetTable) -> int:
    """Switch off the users' triggers and rules of a table: what they did is in the log too.

    Those that are to fire always, or for replicas, are left alone. ``enable_triggers`` switches
    the others on again.
    """
    found = connection.execute(_TRIGGERS, [table.oid, table.oid]).fetchall()
    if found:
        settle(connection)
    for relation, kind, name in found:
        _switch(connection, relation, f"DISABLE {kind}", name)
        connection.execute(
            "INSERT INTO pgtide.disabled VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            [relation, kind, name],
        )
    return len(found)


def enable_triggers(connection: SqlConnection, tables: Sequence[TableName] | None = None) -> int:
    """Switch on what ``disable_triggers`` switched off, as far as it is still there.

    ``tables``: of these and their partitions only.
    """
    names = None if tables is None else [quoted_name(table) for table in tables]
    found = connection.execute(_DISABLED, [names, names]).fetchall()
    if found:
        settle(connection)
    for relation, kind, name in found:
        _switch(connection, relation, f"ENABLE {kind}", name)
    return len(found)


def _switch(connection: SqlConnection, relation: int, how: str, name: str) -> None:
    query = "SELECT %s::oid::regclass::text"
    row = connection.execute(query, [relation]).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    quoted = sql.Identifier(name).as_string(None)
    connection.execute(f"ALTER TABLE {row[0]} {how} {quoted}".encode())


@contextmanager
def unlocked(
    connection: SqlConnection, table: TargetTable, columns: Sequence[str]
) -> Iterator[None]:
    """Let columns be updated that are GENERATED ALWAYS AS IDENTITY: Postgres refuses that."""
    _generate(connection, table, columns, "BY DEFAULT")
    yield
    _generate(connection, table, columns, "ALWAYS")


def _generate(
    connection: SqlConnection, table: TargetTable, columns: Sequence[str], way: str
) -> None:
    if columns:
        settle(connection)
    for column in columns:
        name = sql.Identifier(column).as_string(None)
        statement = f"ALTER TABLE {table.name} ALTER COLUMN {name} SET GENERATED {way}"
        connection.execute(statement.encode())


def quoted_name(name: TableName) -> str:
    """Schema and table as SQL has them."""
    return sql.Identifier(*name).as_string(None)
