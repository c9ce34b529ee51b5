"""A table that loses or never had a replica identity: the application's writes go on."""

from __future__ import annotations

import pytest

from tests.fixtures.databases import Database
from tests.postgres.source import PreparedSource, tables


@pytest.fixture
def source(database: Database) -> PreparedSource:
    return PreparedSource(database)


@pytest.mark.parametrize(
    "command",
    [
        "CREATE TABLE t (x int)",
        "CREATE TABLE t AS SELECT 1 AS x",
        "CREATE UNLOGGED TABLE t (x int); ALTER TABLE t SET LOGGED",
        "CREATE TABLE t (x int PRIMARY KEY); ALTER TABLE t DROP CONSTRAINT t_pkey",
        "CREATE TABLE t (x int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE t (x int NOT NULL, UNIQUE (x));"
        " ALTER TABLE t REPLICA IDENTITY USING INDEX t_x_key;"
        " ALTER TABLE t DROP CONSTRAINT t_x_key",
        "CREATE TABLE t (x int NOT NULL); CREATE UNIQUE INDEX i ON t (x);"
        " ALTER TABLE t REPLICA IDENTITY USING INDEX i; DROP INDEX i",
        "CREATE TABLE p (x int) PARTITION BY LIST (x);"
        " CREATE TABLE t PARTITION OF p FOR VALUES IN (1, 2)",
        "CREATE SCHEMA s CREATE TABLE inside (x int); ALTER TABLE s.inside SET SCHEMA public;"
        " ALTER TABLE inside RENAME TO t",
    ],
)
def test_updates_keep_working(source: PreparedSource, command: str) -> None:
    last = source.ddl(command)[-1]
    source.execute("INSERT INTO t VALUES (1); UPDATE t SET x = 2; DELETE FROM t")
    (setting,) = source.execute("SELECT relreplident::text FROM pg_class WHERE relname = 't'")
    assert setting == ("f",)
    assert tables(last)["t"]["replica_identity"] == "f"


def test_setting_it_is_noted_and_causes_no_message_of_its_own(source: PreparedSource) -> None:
    body = source.one("CREATE TABLE t (x int)")
    assert body["identity_set"] == [tables(body)["t"]["oid"]]
    assert body["identity_failed"] == []


def test_works_for_a_role_without_rights_on_pgtide(source: PreparedSource) -> None:
    role = f"{source.database.name}_app"
    source.database.create_role(name=role)
    source.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
    body = source.one(f"SET ROLE {role}; CREATE TABLE t (x int)")
    source.execute(f"SET ROLE {role}; INSERT INTO t VALUES (1); UPDATE t SET x = 2")
    assert len(body["identity_set"]) == 1
    source.execute(f"DROP OWNED BY {role}")


def test_nothing_is_the_users_own_decision(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (x int PRIMARY KEY)")
    body = source.one("ALTER TABLE t REPLICA IDENTITY NOTHING")
    assert body["identity_nothing"] == [tables(body)["t"]["oid"]]
    assert body["identity_set"] == []


def test_tables_with_a_key_are_left_alone(source: PreparedSource) -> None:
    body = source.one("CREATE TABLE t (x int PRIMARY KEY)")
    assert tables(body)["t"]["replica_identity"] == "d"
    assert body["identity_set"] == []


def test_tables_outside_our_publications_are_left_alone(database: Database) -> None:
    database.execute("CREATE SCHEMA other; CREATE TABLE public.seed (id int PRIMARY KEY)")
    source = PreparedSource(database, tables=["public.*"])
    body = source.one("CREATE TABLE other.t (x int)")
    if database.execute("SHOW server_version_num")[0][0] >= "150000":
        assert tables(body)["t"]["replica_identity"] == "d"
