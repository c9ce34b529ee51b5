"""The DDL trigger against people: forged facts, forged messages, and its own failures."""

from __future__ import annotations

import hashlib
import hmac
import json

import psycopg
import pytest

from pgtide.postgres.connection import connect
from pgtide.postgres.ddl_trigger import read_key
from tests.fixtures.databases import Database
from tests.postgres.source import PreparedSource, tables, verified_body


@pytest.fixture
def source(database: Database) -> PreparedSource:
    return PreparedSource(database)


def key_of(source: PreparedSource) -> bytes:
    with connect(source.database.url) as conn:
        key = read_key(conn)
    assert key is not None
    return key


def test_signature_is_hmac_sha256(source: PreparedSource) -> None:
    source.execute('CREATE TABLE "Ünï" (id int PRIMARY KEY); COMMENT ON TABLE "Ünï" IS \'𝄞\'')
    key = key_of(source)
    assert len(key) == 64
    contents = source.contents()
    assert len(contents) == 2
    for content in contents:
        signature, body = content.split(b"\n", 1)
        assert hmac.new(key, body, hashlib.sha256).hexdigest().encode() == signature
        assert json.loads(body)["v"] == 1
    assert verified_body(key, contents[0][:-1] + b" ") is None


def test_xid_is_the_transactions_own(source: PreparedSource) -> None:
    with source.database.connect(autocommit=False) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        row = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    assert source.bodies()[0]["xid"] == row[0]


FORGED = '{"moment": "%s", "left_out": 0, "dropped": [{"type": "table"}], "rewrites": []}'


@pytest.mark.parametrize(
    "value", ["nonsense", "", "{}", "0" * 64 + "\n" + FORGED, "\n", "x" * 65 + "{"]
)
def test_forged_facts_are_not_taken_over(source: PreparedSource, value: str) -> None:
    with source.database.connect() as conn:
        conn.execute("SELECT set_config('pgtide.facts', %s, false)", [value])
        conn.execute("SELECT set_config('pgtide.ordinal', %s, false)", [value])
        conn.execute("SELECT set_config('pgtide.guard', %s, false)", [value])
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (body,) = source.bodies()
    assert body["dropped"] == []
    assert body["ordinal"] == 1
    assert "t" in tables(body)


def test_real_facts_do_not_fit_another_command(source: PreparedSource) -> None:
    """Signed facts, read in the middle of a rewrite, are worth nothing in the next statement."""
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x int);"
        " INSERT INTO t VALUES (1, 1);"
        " CREATE FUNCTION spy() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM set_config('spy.facts', current_setting('pgtide.facts'), false); RETURN 1;"
        " END $$"
    )
    with source.database.connect(autocommit=False) as conn:
        conn.execute("ALTER TABLE t ALTER x TYPE bigint USING spy()")
        row = conn.execute("SELECT current_setting('spy.facts')").fetchone()
        assert row is not None
        assert '"rewrites": [{' in row[0]
        conn.execute("SELECT set_config('pgtide.facts', current_setting('spy.facts'), true)")
        conn.execute("CREATE TABLE u (id int PRIMARY KEY)")
        # Nor does it pass for a message.
        conn.execute("SELECT pg_logical_emit_message(true, 'pgtide.ddl', %s::text)", [row[0]])
    bodies = source.bodies()
    rewrites = [body["rewrites"] for body in bodies if "t" in tables(body)]
    assert len(rewrites[-1]) == 1
    assert bodies[-1]["rewrites"] == []
    assert "u" in tables(bodies[-1])


def test_unprivileged_role_can_neither_sign_nor_read(source: PreparedSource) -> None:
    url = source.database.create_role()
    for query in (
        "SELECT * FROM pgtide.secret",
        "SELECT pgtide.sign('x')",
        "SELECT pgtide.emit('{}')",
        "SELECT pgtide.record_command('a', 'b', 'c', 'd')",
        "SELECT pgtide.on_ddl_command_end()",
    ):
        with psycopg.connect(url) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(query.encode())
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SELECT pg_logical_emit_message(true, 'pgtide.ddl', 'forged')")
    assert len(source.contents()) == 1
    assert source.bodies() == []


def test_the_secret_is_never_replaced(source: PreparedSource) -> None:
    before = key_of(source)
    source.execute("UPDATE pgtide.settings SET value = '{}' WHERE key = 'ddl_trigger'")
    again = PreparedSource(source.database)
    assert {step.name: step.done for step in again.result.steps}["ddl"] is False
    assert key_of(again) == before


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE pgtide.settings RENAME value TO worth",
        "DROP TABLE pgtide.settings",
        "DROP FUNCTION pgtide.describe(oid)",
        "ALTER FUNCTION pgtide.facts() RENAME TO fiction",
    ],
)
def test_failure_is_reported_and_never_aborts(source: PreparedSource, damage: str) -> None:
    source.ddl(damage)
    (body,) = source.ddl("CREATE TABLE t (x int)")
    assert body["unknown"] is True
    assert body["tag"] == "CREATE TABLE"
    assert body["v"] == 1
    assert len(body["error"]) == 5
    assert "objects" not in body
    source.execute("INSERT INTO t VALUES (1)")


def test_failure_while_collecting_is_reported_too(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    source.ddl("DROP FUNCTION pgtide.keep_facts(text, jsonb, bigint)")
    assert source.ddl("ALTER TABLE t ALTER x TYPE int USING 1")[0]["unknown"] is True
    assert source.ddl("DROP TABLE t")[0]["unknown"] is True


@pytest.mark.parametrize("damage", ["DELETE FROM pgtide.secret", "DROP TABLE pgtide.secret"])
def test_without_secret_the_report_is_unsigned(source: PreparedSource, damage: str) -> None:
    source.execute(damage)
    source.contents()
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (content,) = source.contents()
    signature, body = content.split(b"\n", 1)
    assert signature == b""
    assert json.loads(body)["unknown"] is True


def test_locked_settings_delay_but_do_not_abort(source: PreparedSource) -> None:
    with source.database.connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE pgtide.settings IN ACCESS EXCLUSIVE MODE")
        source.execute("CREATE TABLE t (x int)")
    assert [(b["unknown"], b["error"]) for b in source.bodies()] == [(True, "55P03")]


def test_latin1_database_sends_utf8(database: Database) -> None:
    name = f"{database.name}_latin1"
    database.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    latin = Database(database.server, name)
    try:
        source = PreparedSource(latin)
        with latin.connect() as conn:
            conn.execute("SET client_encoding = 'UTF8'")
            conn.execute('CREATE TABLE "größe" (id int PRIMARY KEY)')
        assert list(tables(source.bodies()[0])) == ["größe"]
    finally:
        latin.drop()
