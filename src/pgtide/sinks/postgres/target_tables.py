"""Tables of the target as its own catalog has them, in whatever transaction asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql

from pgtide.errors import TargetError
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.operators import operator, operators_of
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
       EXISTS (SELECT FROM pg_catalog.pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN ROWS FROM (unnest(%s::text[]), unnest(%s::text[])) AS wanted(nspname, relname)
  ON (wanted.nspname, wanted.relname) = (n.nspname::text, c.relname::text)
WHERE c.relkind IN ('r', 'p')
"""
_CASCADES = """
SELECT conrelid, confrelid, confdeltype = 'c', confupdtype = 'c' FROM pg_catalog.pg_constraint
WHERE contype = 'f' AND 'c' IN (confdeltype, confupdtype)
  AND (confrelid = ANY (%s::oid[]) OR conrelid = ANY (%s::oid[]))
"""
_TRIGGERS = """
WITH mine AS (
    SELECT relid FROM pg_catalog.pg_partition_tree(%s::oid) UNION SELECT %s::oid
)
SELECT t.tgrelid::oid, 'TRIGGER', t.tgname FROM pg_catalog.pg_trigger t JOIN mine ON relid = tgrelid
WHERE NOT t.tgisinternal AND t.tgenabled = 'O' AND t.tgparentid = 0
UNION ALL
SELECT r.ev_class::oid, 'RULE', r.rulename
FROM pg_catalog.pg_rewrite r JOIN mine ON relid = ev_class
WHERE r.ev_enabled = 'O' AND r.rulename <> '_RETURN'
"""
# Not clones in partitions: they go with that of the partitioned table.
_SWITCHES = """
SELECT n.nspname, c.relname, s.kind, s.name, s.state FROM (
    SELECT tgrelid AS relation, 'TRIGGER' AS kind, tgname AS name, tgenabled::text AS state
    FROM pg_catalog.pg_trigger WHERE NOT tgisinternal AND tgparentid = 0
    UNION ALL
    SELECT ev_class, 'RULE', rulename, ev_enabled::text
    FROM pg_catalog.pg_rewrite WHERE rulename <> '_RETURN'
) s JOIN pg_catalog.pg_class c ON c.oid = s.relation
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname !~ '^pg_'
"""
_ENABLED = {"O": "ENABLE", "A": "ENABLE ALWAYS", "R": "ENABLE REPLICA"}


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
    for schema, table, oid, kind, columns, refers in connection.execute(_TABLES.encode(), arrays):
        known = {c["name"]: TargetColumn(**c) for c in columns or ()}
        found[schema, table] = TargetTable(schema, table, oid, kind == "p", known, refers)
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
    """Tables whose rows go with others, ON DELETE CASCADE, by oid."""

    parents: frozenset[int]
    children: frozenset[int]
    followers: frozenset[int]  # ON UPDATE CASCADE


def read_cascades(connection: SqlConnection, tables: Sequence[TargetTable]) -> Cascades:
    """What rows of these tables take along when they are deleted."""
    oids = [table.oid for table in tables]
    found = connection.execute(_CASCADES, [oids, oids]).fetchall()
    return Cascades(
        frozenset(parent for _, parent, deletes, _ in found if deletes),
        frozenset(child for child, _, deletes, _ in found if deletes),
        frozenset(child for child, _, _, updates in found if updates),
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


def enable_triggers(connection: SqlConnection, source: SqlConnection) -> int:
    """Switch on what ``disable_triggers`` switched off, as far as the source has it enabled.

    By the names and states that the source has now: since then a trigger may have been renamed
    there, enabled in another way, or disabled. What only the target has is enabled as before.
    """
    there = {tuple(row[:4]): row[4] for row in source.execute(_SWITCHES.encode())}
    noted: dict[int, set[tuple[str, str]]] = {}
    for relation, kind, name in connection.execute(
        "SELECT relation::bigint, kind, name FROM pgtide.disabled"
    ):
        noted.setdefault(relation, set()).add((kind, name))
    switched = 0
    for relation, names in noted.items():
        with connection.transaction():  # table by table: what is enabled is no longer noted
            off = connection.execute(
                f"{_SWITCHES} AND c.oid = %s AND s.state = 'D'".encode(), [relation]
            ).fetchall()
            for schema, table, kind, name, _ in off:
                state = there.get((schema, table, kind, name))
                if state in _ENABLED or (state is None and (kind, name) in names):
                    _switch(connection, relation, f"{_ENABLED[state or 'O']} {kind}", name)
                    switched += 1
            connection.execute("DELETE FROM pgtide.disabled WHERE relation = %s", [relation])
    return switched


def _switch(connection: SqlConnection, relation: int, how: str, name: str) -> None:
    query = "SELECT %s::oid::regclass::text"
    row = connection.execute(query, [relation]).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    quoted = sql.Identifier(name).as_string(None)
    connection.execute(f"ALTER TABLE {row[0]} {how} {quoted}".encode())


def settle(connection: SqlConnection) -> None:
    """Have deferred constraints look at rows now: a table with some pending cannot be altered."""
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    connection.execute("SET CONSTRAINTS ALL DEFERRED")


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
