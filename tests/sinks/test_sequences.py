"""Values of sequences at a Postgres target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtide.config import TablePatterns
from pgtide.errors import TargetError
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.sequences import Copied, copy_sequences, sequences_of
from tests.fixtures.databases import Database, Server

SCHEMA = """
CREATE SCHEMA shop; CREATE SCHEMA "Odd one";
CREATE TABLE shop.orders (id bigint GENERATED ALWAYS AS IDENTITY (START 100));
CREATE SEQUENCE shop.fresh START 7;
CREATE SEQUENCE shop.down INCREMENT -2 MAXVALUE 0 MINVALUE -1000;
CREATE SEQUENCE shop.round MAXVALUE 10 CYCLE;
CREATE SEQUENCE "Odd one"."o""dd";
"""
VALUES = "SELECT last_value, is_called FROM "


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


def copy(source: Database, target: Database) -> Copied:
    with connect(source.url) as one, connect(target.url) as other:
        return copy_sequences(
            one, other, sequences_of(one, [TablePatterns(["shop.*", '"Odd one".*'])])
        )


def test_all_kinds(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute(SCHEMA)
    database.execute(
        """
        INSERT INTO shop.orders SELECT FROM generate_series(1, 5);
        ALTER SEQUENCE shop.fresh RESTART WITH 20;
        SELECT nextval('shop.down') FROM generate_series(1, 3);
        SELECT nextval('shop.round') FROM generate_series(1, 12);
        SELECT nextval('"Odd one"."o""dd"');
        CREATE SEQUENCE shop.extra; CREATE SEQUENCE public.other;
        """
    )
    target.execute("SELECT nextval('shop.round') FROM generate_series(1, 5)")
    copied = copy(database, target)
    assert copied.missing == ["shop.extra"]
    assert not copied.complete
    assert len(copied.set) == 5
    for name in (
        "shop.orders_id_seq",
        "shop.fresh",
        "shop.down",
        "shop.round",
        '"Odd one"."o""dd"',
    ):
        assert target.execute(VALUES + name) == database.execute(VALUES + name)
    assert target.execute("SELECT nextval('shop.fresh'), nextval('shop.orders_id_seq')") == [
        (20, 105)
    ]


def test_those_of_the_selected_tables(database: Database) -> None:
    """Wherever they are; not those of tables that the target never gets."""
    database.execute(
        """
        CREATE SCHEMA numbers; CREATE SCHEMA elsewhere; CREATE SCHEMA shop;
        CREATE SEQUENCE numbers.drawn; CREATE SEQUENCE numbers.lonely; CREATE SEQUENCE shop.free;
        CREATE TABLE shop.orders (id serial, no bigint DEFAULT nextval('numbers.drawn'));
        CREATE TABLE shop.audit_log (id serial, other bigint GENERATED ALWAYS AS IDENTITY);
        CREATE UNLOGGED TABLE shop.cache (id serial);
        CREATE TABLE elsewhere.t (id serial, no int DEFAULT nextval('shop.audit_log_id_seq'));
        """
    )
    orders = {("shop", "orders_id_seq"), ("numbers", "drawn")}
    audit = {("shop", "audit_log_id_seq"), ("shop", "audit_log_other_seq")}
    free, cache = ("shop", "free"), ("shop", "cache_id_seq")
    with connect(database.url) as conn:

        def chosen(*patterns: str) -> set[tuple[str, str]]:
            return sequences_of(conn, [TablePatterns(["*.*"]), TablePatterns(patterns)])

        assert chosen("shop.*", "!shop.audit_*") == {*orders, free, cache}
        assert chosen("shop.orders") == {*orders, free}
        everywhere = {*orders, free, cache, ("numbers", "lonely"), ("elsewhere", "t_id_seq")}
        assert chosen("*.*", "!shop.audit_*") == {*everywhere, ("shop", "audit_log_id_seq")}
        assert chosen("*.*") == everywhere | audit


def test_a_target_that_is_ahead_stays_there(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute(SCHEMA)
    target.execute("SELECT setval('shop.fresh', 50), setval('shop.down', -50)")
    database.execute("SELECT setval('shop.fresh', 40), setval('shop.down', -40)")
    copied = copy(database, target)
    assert copied.ahead == ["shop.down", "shop.fresh"]
    assert target.execute(VALUES + "shop.fresh") == [(50, True)]
    assert copy(database, target).ahead == copied.ahead


def test_rights(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute(SCHEMA)
    database.execute("SELECT setval('shop.fresh', 40)")
    reader = database.create_role("LOGIN")
    with connect(reader) as one, connect(target.url) as other:
        copied = copy_sequences(one, other)
    assert "shop.fresh" in copied.unreadable
    writer = target.create_role("LOGIN")
    role = target.roles[-1]
    target.execute(f"GRANT USAGE ON SCHEMA shop TO {role}")
    target.execute(f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA shop TO {role}")
    with (
        connect(database.url) as one,
        connect(writer) as other,
        pytest.raises(TargetError, match="may not set sequences"),
    ):
        copy_sequences(one, other)
    target.execute(f"DROP OWNED BY {role}")
