"""Layouts and server facts as the catalog has them."""

from __future__ import annotations

from pgtide.config import TablePatterns
from pgtide.postgres.catalog import read_layouts, read_server
from pgtide.postgres.connection import connect
from pgtide.shape import Shape
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer, MakeStandby
from tests.fixtures.waiting import wait_until


def layouts(database: Database, *patterns: str) -> dict[str, Shape]:
    with connect(database.url) as conn:
        found = read_layouts(conn, TablePatterns(patterns) if patterns else None)
    return {shape.table: shape for shape in found.values()}


def test_columns_in_order_with_keys_and_types(database: Database) -> None:
    database.execute(
        "CREATE TYPE mood AS ENUM ('a');"
        " CREATE TABLE t (b numeric(7,3), gone int, a int, m mood NOT NULL,"
        " g int GENERATED ALWAYS AS (a + 1) STORED, PRIMARY KEY (a, b));"
        " ALTER TABLE t DROP COLUMN gone"
    )
    shape = layouts(database)["t"]
    assert (shape.schema, shape.replica_identity, shape.root_oid) == ("public", "d", 0)
    described = [
        (c.attnum, c.name, c.type_name, c.nullable, c.key, c.identity, c.generated)
        for c in shape.columns
    ]
    assert described == [
        (1, "b", "numeric(7,3)", False, True, True, False),
        (3, "a", "integer", False, True, True, False),
        (4, "m", "public.mood", False, False, False, False),
        (5, "g", "integer", True, False, False, True),
    ]
    assert shape.columns[0].typmod == 458759


DOMAINS = """
CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN fair AS price CHECK (VALUE > 0);
CREATE DOMAIN tags AS varchar(8)[]; CREATE TYPE mood AS ENUM ('a');
CREATE TABLE t (a int, b fair, c int[], d fair[], e tags, f box[], g int2vector, h mood[],
    i numeric(5,1)[][], j tags[], k name, l point)
"""
# name: base_oid, base_typmod, element_oid; enums have an oid of their own
BELOW = {
    "a": (0, -1, 0),
    "b": (1700, 655366, 0),
    "c": (0, -1, 23),
    "d": (0, -1, 1700),
    "e": (1015, 12, 1043),
    "f": (0, -1, 0),
    "g": (0, -1, 0),
    "i": (0, -1, 1700),
    "j": (0, -1, 1015),
    "k": (0, -1, 0),
    "l": (0, -1, 0),
}


def test_what_domains_and_arrays_are_made_of(database: Database) -> None:
    database.execute(DOMAINS)
    ((mood,),) = database.execute("SELECT 'mood'::regtype::oid::bigint")
    found = {
        column.name: (column.base_oid, column.base_typmod, column.element_oid)
        for column in layouts(database)["t"].columns
    }
    assert found == BELOW | {"h": (0, -1, mood)}


def test_identity_follows_the_setting_and_the_key_does_not(database: Database) -> None:
    database.execute(
        "CREATE TABLE f (a int PRIMARY KEY, b int); ALTER TABLE f REPLICA IDENTITY FULL;"
        "CREATE TABLE i (a int PRIMARY KEY, b int NOT NULL, c int);"
        "CREATE UNIQUE INDEX u ON i (b) INCLUDE (c); ALTER TABLE i REPLICA IDENTITY USING INDEX u;"
        "CREATE TABLE n (a int PRIMARY KEY); ALTER TABLE n REPLICA IDENTITY NOTHING;"
        "CREATE TABLE late (a int PRIMARY KEY DEFERRABLE)"
    )
    found = {
        name: (
            shape.replica_identity,
            [c.name for c in shape.columns if c.key],
            [c.name for c in shape.columns if c.identity],
        )
        for name, shape in layouts(database).items()
    }
    assert found == {
        "f": ("f", ["a"], ["a", "b"]),
        "i": ("i", ["a"], ["b"]),
        "n": ("n", ["a"], []),
        "late": ("d", [], []),  # within a transaction two rows may have it
    }


def test_partitions_know_their_root_and_are_selected_by_it(database: Database) -> None:
    database.execute(
        "CREATE SCHEMA parts; CREATE TABLE p (id int) PARTITION BY LIST (id);"
        " CREATE TABLE parts.p1 PARTITION OF p FOR VALUES IN (1) PARTITION BY LIST (id);"
        " CREATE TABLE parts.p11 PARTITION OF parts.p1 FOR VALUES IN (1); CREATE TABLE x ()"
    )
    leaf = layouts(database)["p11"]
    assert (leaf.root_schema, leaf.root_table) == ("public", "p")
    assert set(layouts(database, "public.p")) == {"p", "p1", "p11"}
    assert set(layouts(database, "parts.p11")) == {"p11"}


def test_only_permanent_tables_of_users(database: Database) -> None:
    database.execute(
        "CREATE UNLOGGED TABLE u (); CREATE VIEW v AS SELECT 1; CREATE TABLE empty ();"
        " CREATE SCHEMA pgtide; CREATE TABLE pgtide.own ()"
    )
    assert {name: shape.columns for name, shape in layouts(database).items()} == {"empty": ()}


def test_timeline_is_the_new_one_right_after_promotion(
    make_server: MakeServer, make_standby: MakeStandby
) -> None:
    standby = make_standby(make_server())
    with connect(standby.url()) as conn:
        assert read_server(conn).in_recovery
        conn.execute("SELECT pg_promote(wait => true)")
        wait_until(lambda: not read_server(conn).in_recovery, "promotion")
        assert read_server(conn).timeline == 2
