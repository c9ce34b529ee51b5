"""Random DDL among random rows: the target has the same catalog and the same rows.

Each seed gives the same statements. Transactions and savepoints are rolled back now and then, and
whatever the source refuses is. Left out is what a replica refuses and REPLICA.md says so: values
that only the source has in tables without a key or in keys, and rows that a constraint NOT VALID
has never looked at.
"""

from __future__ import annotations

from random import Random
from typing import Any

import psycopg
import pytest

from tests.sinks.postgres.ddl_replica import capture_all, rows_of, schema_of
from tests.sinks.postgres.replicas import Replica

SEEDS = range(2, 8)
ROUNDS = 4  # after each, the target is compared
TRANSACTIONS = 25

TYPES = {  # and values by a number
    "bigint": "{} * 1000000007::bigint",
    "integer": "{}",
    "numeric": "{} / 8.0",
    "text": "repeat('t' || {}, ({}) % 5)",
    "timestamp with time zone": "timestamptz '2024-01-01 00:00Z' + ({}) * interval '1 hour'",
}
COMPUTED = {"text": "gen_random_uuid()::text", "timestamp with time zone": "now()"}
OURS = "namespace::regnamespace::text LIKE 's%' ORDER BY 1"
THERE = {
    "schema": "SELECT nspname FROM pg_namespace WHERE nspname LIKE 's%' ORDER BY 1",
    "enum": f"SELECT oid::regtype::text FROM pg_type WHERE typtype = 'e' AND typ{OURS}",
    "table": "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p')"
    f" AND NOT relispartition AND rel{OURS}",
    "keyed": "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND EXISTS ("
    f"SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary) AND rel{OURS}",
    **{
        word: f"SELECT oid::regclass::text FROM pg_class WHERE relkind = '{kind}' AND rel{OURS}"
        for word, kind in {"index": "i", "view": "v", "sequence": "S"}.items()
    },
}
COLUMNS = """SELECT quote_ident(attname), format_type(atttypid, NULL),
       attnum = ANY (coalesce(indkey::int[], '{}'))
    FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    ORDER BY 1"""
STATEMENTS = """
CREATE TABLE {schema}.{new} ({columns})
CREATE TABLE {schema}.{new} ({columns}, UNIQUE (c1), CHECK (c0 IS NOT NULL))
CREATE TABLE {schema}.{new} ({columns}, d int GENERATED ALWAYS AS (id * 2) STORED)
CREATE TABLE {schema}.{new} (LIKE {table} INCLUDING ALL)
CREATE TABLE {schema}.{new} AS SELECT *, random() AS dice FROM {table}
ALTER TABLE {table} REPLICA IDENTITY FULL
SELECT * INTO {schema}.{new} FROM {table}
CREATE TABLE {schema}.{new} ({columns}) PARTITION BY RANGE (id)
CREATE TABLE {schema}.{new} PARTITION OF {table} FOR VALUES FROM (0) TO (60)
CREATE TABLE {schema}.{new} PARTITION OF {table} DEFAULT
SET LOCAL search_path = {schema}; CREATE TABLE {new} ({columns}); SET LOCAL search_path = public
TRUNCATE {table} CASCADE
DROP TABLE {table}
DROP TABLE {table} CASCADE
ALTER TABLE {keyed} ADD COLUMN {new} {type}
ALTER TABLE {keyed} ADD COLUMN {new} serial
ALTER TABLE {keyed} ADD COLUMN {new} text DEFAULT gen_random_uuid()
ALTER TABLE {table} ADD COLUMN {new} timestamptz DEFAULT now()
ALTER TABLE {table} ADD COLUMN {new} int DEFAULT 5, ADD CHECK ({column} IS NOT NULL)
ALTER TABLE {table} DROP COLUMN {column} CASCADE
ALTER TABLE {table} DROP COLUMN {column}
ALTER TABLE {table} RENAME COLUMN {column} TO {new}
ALTER TABLE {table} RENAME COLUMN id TO {new}
ALTER TABLE {table} ALTER {column} SET DEFAULT {value}
ALTER TABLE {table} ALTER {column} DROP DEFAULT
ALTER TABLE {table} ALTER {column} SET NOT NULL
ALTER TABLE {table} ALTER {column} DROP NOT NULL
ALTER TABLE {keyed} ALTER {column} TYPE text
ALTER TABLE {keyed} ALTER {column} TYPE bigint USING length({column}::text)
ALTER TABLE {table} ADD CONSTRAINT {new} CHECK ({column}::text <> 'new') NOT VALID
ALTER TABLE {table} ADD CONSTRAINT {new} UNIQUE ({column})
ALTER TABLE {table} ADD CONSTRAINT {new} FOREIGN KEY (id) REFERENCES {table2}
ALTER TABLE {table} RENAME TO {new}
ALTER TABLE {table} SET SCHEMA {schema}
CREATE INDEX ON {table} ({column})
CREATE UNIQUE INDEX {new} ON {table} ({column})
CREATE STATISTICS {schema}.{new} ON {column}, id FROM {table}
COMMENT ON COLUMN {table}.{column} IS 'it''s'
CREATE VIEW {schema}.{new} AS SELECT {column} FROM {table}
CREATE MATERIALIZED VIEW {schema}.{new} AS SELECT {column} FROM {table}
ALTER VIEW {view} RENAME TO {new}
DROP VIEW {view}
ALTER INDEX {index} RENAME TO {new}
DROP INDEX {index}
CREATE SEQUENCE {schema}.{new} INCREMENT 3
ALTER SEQUENCE {sequence} RENAME TO {new}
ALTER SEQUENCE {sequence} SET SCHEMA {schema}
DROP SEQUENCE {sequence} CASCADE
CREATE TYPE {schema}.{new} AS ENUM ('one', 'two')
ALTER TYPE {enum} ADD VALUE '{new}'
ALTER TYPE {enum} RENAME TO {new}
DROP TYPE {enum} CASCADE
CREATE SCHEMA s{number}
ALTER SCHEMA {schema} RENAME TO s{number}
""".strip().splitlines()


class NothingThere(Exception):
    """A statement that needs what the database has not."""


class Words(dict[str, str]):
    """The words of one statement: each is chosen when it is met first."""

    def __init__(self, connection: psycopg.Connection[Any], random: Random, number: int) -> None:
        super().__init__(new=random.choice(("x{}", '"X {}"')).format(number), number=str(number))
        self.connection, self.random = connection, random

    def __missing__(self, word: str) -> str:
        if word == "columns":
            others = ", ".join(f"c{n} {self._typed()}" for n in range(3))
            key = self.random.choice(("int", "int GENERATED BY DEFAULT AS IDENTITY"))
            found = f"id {key} PRIMARY KEY, {others}"
        elif word == "type":
            found = self._typed()
        elif word in ("column", "value"):
            chosen = self._one([column for column in self._columns() if not column[2]])
            self["column"], self["value"] = chosen[0], self._literal(chosen[1], "7")
            return self[word]
        else:
            found = self._one(self._rows(THERE[word.rstrip("2")]))[0]
        self[word] = found
        return found

    def rows(self) -> str:
        """A statement about rows; without a key only INSERT."""
        columns, table, first = self._columns(), self["table"], self.random.randint(1, 90)
        key = next((name for name, kind, key in columns if key and kind == "integer"), None)
        match self.random.choice(("insert", "insert", "update", "delete", "move")):
            case "update" if key is not None:
                column, kind, _ = self._one([column for column in columns if not column[2]])
                value = self._literal(kind, f"{key} + {first}")
                return f"UPDATE {table} SET {column} = {value} WHERE {key} % 3 = 0"
            case "delete" if key is not None:
                return f"DELETE FROM {table} WHERE {key} % 5 = {first % 5}"
            case "move" if key is not None:
                return f"UPDATE {table} SET {key} = {key} + 100 WHERE {key} % 7 = 3"
        names = ", ".join(name for name, _, _ in columns)
        values = ", ".join(
            "n" if key else self._literal(kind, f"n % {first}") for _, kind, key in columns
        )
        return (
            f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series({first},"
            f" {first + self.random.randint(0, 30)}) n ON CONFLICT DO NOTHING"
        )

    def _columns(self) -> list[tuple[Any, ...]]:
        return self._rows(COLUMNS, self.get("keyed") or self["table"])

    def _typed(self) -> str:
        """A type and maybe a default."""
        if self.random.random() < 0.1:
            return "serial"
        kind = self["enum"] if self.random.random() < 0.2 else self.random.choice([*TYPES])
        value = COMPUTED.get(kind) if self.random.random() < 0.2 else self._literal(kind, "4")
        return f"{kind} DEFAULT {value}" if value and self.random.random() < 0.6 else kind

    def _literal(self, kind: str, number: str) -> str:
        if kind in TYPES:
            return TYPES[kind].format(number, number)
        labels = "SELECT quote_literal(enumlabel) FROM pg_enum"
        return str(self._one(self._rows(f"{labels} WHERE enumtypid = %s::regtype", kind))[0])

    def _rows(self, query: str, *params: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query.encode(), params or None).fetchall()

    def _one(self, found: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        if not found:
            raise NothingThere
        return self.random.choice(found)


class Statements:
    """Runs them."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self._connection, self._random, self._number = connection, Random(seed), 0

    def transaction(self) -> None:
        with self._connection.transaction(force_rollback=self._random.random() < 0.1):
            for _ in range(self._random.randint(1, 6)):
                self._savepoint()

    def _savepoint(self) -> None:
        """A query string of one statement or two, or a DO block."""
        back = self._random.random() < 0.07
        try:
            with self._connection.transaction(force_rollback=back):
                script = "; ".join(self._statement() for _ in range(self._random.choice((1, 1, 2))))
                if self._random.random() < 0.15:
                    script = f"DO $do$BEGIN {script}; END$do$"
                self._connection.execute(script.encode())
        except (NothingThere, psycopg.Error):
            assert not self._connection.closed

    def _statement(self) -> str:
        self._number += 1
        words = Words(self._connection, self._random, self._number)
        if self._random.random() < 0.35:
            return words.rows()
        return self._random.choice(STATEMENTS).format_map(words)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_of_statements(replica: Replica, seed: int) -> None:
    source = replica.captured
    source.run("CREATE SCHEMA s1;\nCREATE TYPE s1.mood AS ENUM ('calm', 'rough');\n")
    with source.database.connect() as connection:
        statements = Statements(connection, seed)
        for _ in range(ROUNDS):
            for _ in range(TRANSACTIONS):
                statements.transaction()
            capture_all(source)
            replica.apply()
            assert schema_of(replica.target) == schema_of(source.database)
            assert rows_of(replica.target) == rows_of(source.database)
