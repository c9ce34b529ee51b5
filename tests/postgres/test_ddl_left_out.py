"""What the DDL trigger says nothing about: temporary objects, extension scripts, our own."""

from __future__ import annotations

import pytest

from pgtide.postgres.embedded import bundled_bin_dir
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.postgres.source import PreparedSource


@pytest.fixture
def source(database: Database) -> PreparedSource:
    return PreparedSource(database)


@pytest.mark.parametrize(
    "command",
    [
        "CREATE TEMP TABLE t (id int PRIMARY KEY)",
        "CREATE TEMP TABLE t AS SELECT 1 AS x; ALTER TABLE t ADD COLUMN y int; DROP TABLE t",
        "CREATE TEMP TABLE t (x int); CREATE INDEX i ON t (x); DROP INDEX i",
        "CREATE TEMP TABLE t (x int DEFAULT 1); ALTER TABLE t ALTER x DROP DEFAULT",
        "CREATE TEMP TABLE t (x int); CREATE TRIGGER tr BEFORE UPDATE ON t FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger(); DROP TRIGGER tr ON t",
        "CREATE TEMP TABLE t (x int); ALTER TABLE t ALTER x TYPE bigint",
        "COMMENT ON TABLE pgtide.settings IS 'ours'; COMMENT ON SCHEMA pgtide IS 'ours'",
        "CREATE TABLE pgtide.more (id int); DROP TABLE pgtide.more",
    ],
)
def test_temporary_objects_and_our_own_are_left_out(source: PreparedSource, command: str) -> None:
    assert source.ddl(command) == []


def test_extension_scripts_are_left_out(source: PreparedSource) -> None:
    ((name,),) = source.execute(
        "SELECT min(name) FROM pg_available_extensions WHERE name IN ('citext', 'hstore', 'vector')"
    )
    created, table = source.ddl(f"CREATE EXTENSION {name}; CREATE TABLE t ()")
    assert [(item["type"], item["identity"]) for item in created["objects"]] == [
        ("extension", name)
    ]
    # Commands of the script count among all, not among those of the string.
    assert created["ordinal"] > 10
    assert (created["top_ordinal"], table["top_ordinal"]) == (1, 2)
    dropped = source.one(f"DROP EXTENSION {name}")
    assert [d["identity"] for d in dropped["dropped"] if d["original"]] == [name]


def test_looking_like_an_extension_script_hides_nothing(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    body = source.one(
        "SET check_function_bodies = off; SET search_path = public, pg_temp; DROP TABLE t"
        " /* as in ALTER EXTENSION x UPDATE */"
    )
    assert [d["identity"] for d in body["dropped"] if d["original"]] == ["public.t"]
    assert source.execute("SELECT count(*) FROM pg_proc WHERE proname = 'pgtide_probe'") == [(0,)]


def test_drops_of_an_extension_script_are_left_out(make_server: MakeServer) -> None:
    server = make_server(bundled_bin_dir(18))
    scripts = server.directory / "share" / "extension"
    scripts.mkdir(parents=True)
    scripts.parent.chmod(0o755)
    scripts.chmod(0o755)
    (scripts / "tide_test.control").write_text("default_version = '1'\n")
    make = "CREATE FUNCTION tide_f() RETURNS int LANGUAGE sql AS 'SELECT 1'"
    (scripts / "tide_test--1.sql").write_text(f"{make}; CREATE TABLE tide_t (id int);")
    (scripts / "tide_test--1--2.sql").write_text("DROP FUNCTION tide_f(); DROP TABLE tide_t;")
    source = PreparedSource(Database.create(server))
    path = f"SET extension_control_path = '{scripts.parent}'"
    source.execute(f"{path}; CREATE EXTENSION tide_test")
    body = source.one(f"{path}; ALTER EXTENSION tide_test UPDATE TO '2'")
    assert body["tag"] == "ALTER EXTENSION"
    assert body["top_ordinal"] == 1


def test_mixed_drop_keeps_the_permanent_one(source: PreparedSource) -> None:
    source.execute("CREATE TABLE keep (id int PRIMARY KEY)")
    body = source.one("CREATE TEMP TABLE t (); DROP TABLE t, keep")
    assert [d["identity"] for d in body["dropped"] if d["type"] == "table"] == ["public.keep"]
