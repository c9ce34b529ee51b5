"""``init`` and ``destroy`` as an administrator."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from pgtide.errors import (
    ConfigError,
    IdentityMissing,
    LogGap,
    OtherSource,
    SlotBusy,
    SourceError,
)
from pgtide.log.source import LogSource
from pgtide.postgres.connection import connect, connect_replication, run
from pgtide.postgres.settings import read_slot_settings
from pgtide.postgres.setup import init
from pgtide.postgres.slot import capture_lock_key, read_slot
from pgtide.postgres.teardown import destroy
from pgtide.sinks.postgres.bookkeeping import prepare
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.postgres.source import PreparedSource, catalog, make_config, script_of, tables

KEYED = "CREATE TABLE keyed (id int PRIMARY KEY);"
KEYLESS = "CREATE TABLE keyless (x int);"


@pytest.fixture
def admin(database: Database) -> Database:
    """A database with an application's table."""
    database.execute(KEYED)
    return database


def test_init_twice_changes_nothing_the_second_time(admin: Database) -> None:
    first = init(make_config(admin))
    assert first.slot_created
    assert first.consistent_point is not None
    before = catalog(admin)
    log = LogSource(first.system_identifier, first.database, first.slot)
    second = init(make_config(admin), log=log)
    assert not second.slot_created
    assert second.baseline is None
    assert [step.text for step in second.steps if not step.done and not step.note] == []
    assert catalog(admin) == before


def test_baseline_is_what_the_slot_sees(admin: Database) -> None:
    result = init(make_config(admin))
    assert result.baseline is not None
    assert [(s.table, s.since) for s in result.baseline] == [("keyed", result.consistent_point)]
    assert result.database == admin.name
    with connect(admin.url) as conn:
        assert read_slot(conn, admin.name).confirmed_flush_lsn == result.consistent_point


def test_new_table_is_captured_from_its_first_row(admin: Database) -> None:
    source = PreparedSource(admin)
    source.contents()
    admin.execute("CREATE TABLE fresh AS SELECT 1 AS x; UPDATE fresh SET x = 2")
    with admin.connect() as conn:
        rows = conn.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s)",
            [source.config.source.slot, source.config.source.slot],
        ).fetchall()
    kinds = [bytes(data[:1]) for (data,) in rows]
    assert kinds.count(b"I") == 1
    assert kinds.count(b"U") == 1


def test_destroy_leaves_nothing(admin: Database) -> None:
    before = catalog(admin)
    init(make_config(admin))
    assert catalog(admin) != before
    result = destroy(make_config(admin))
    assert catalog(admin) == before
    assert f"replication slot {admin.name}" in result.removed
    again = destroy(make_config(admin))
    assert again.removed == []


def test_destroy_of_a_source_that_is_a_target_too(admin: Database) -> None:
    """It keeps what other pipelines need; also once a cutover has made it read-only."""
    with connect(admin.url) as connection:
        prepare(connection)
    before = {**catalog(admin), "pg_namespace": []}  # init closes the schema to others
    init(make_config(admin))
    admin.execute(f"ALTER DATABASE {admin.name} SET default_transaction_read_only = on")
    result = destroy(make_config(admin))
    assert {**catalog(admin), "pg_namespace": []} == before
    assert admin.execute("SELECT count(*) FROM pgtide.progress") == [(0,)]
    assert any("stays, for pipelines that write" in text for text in result.removed)
    assert destroy(make_config(admin)).removed == []


def test_destroy_says_what_stays(admin: Database) -> None:
    admin.execute(KEYLESS)
    init(make_config(admin, keyless="full"))
    result = destroy(make_config(admin))
    assert any("REPLICA IDENTITY FULL of public.keyless" in text for text in result.left)


def test_destroy_leaves_a_publication_of_others(admin: Database) -> None:
    admin.execute(f"CREATE PUBLICATION {admin.name}")
    destroy(make_config(admin))
    assert admin.execute("SELECT pubname FROM pg_publication") == [(admin.name,)]


def test_two_slots_of_one_database(admin: Database) -> None:
    before = catalog(admin)
    other = f"{admin.name}_b"
    init(make_config(admin))
    init(make_config(admin, slot=other))
    result = destroy(make_config(admin))
    assert any(f"stays for slot {other}" in text for text in result.removed)
    assert admin.execute("SELECT count(*) FROM pg_event_trigger WHERE evtname ~ '^_pgtide'") == [
        (3,)
    ]
    destroy(make_config(admin, slot=other))
    assert catalog(admin) == before


def test_destroy_refuses_while_captured_unless_forced(admin: Database) -> None:
    config = make_config(admin)
    init(config)
    with connect(admin.url) as capture:
        capture.execute(
            sql.SQL("SELECT pg_try_advisory_lock({})").format(capture_lock_key(admin.name))
        )
        with pytest.raises(SlotBusy) as caught:
            destroy(config)
        assert "--force" in caught.value.hint
        with connect(admin.url) as conn:
            assert read_slot(conn, admin.name).exists
        destroy(config, force=True)
        with pytest.raises(psycopg.OperationalError):
            capture.execute("SELECT 1")


def test_destroy_ends_a_walsender_by_force(admin: Database) -> None:
    config = make_config(admin)
    init(config)
    with connect_replication(admin.url) as stream:
        run(
            stream,
            f"START_REPLICATION SLOT {admin.name} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{admin.name}')",
        )
        with pytest.raises(SlotBusy):
            destroy(config)
        destroy(config, force=True)
        stream.close()
    assert admin.execute("SELECT count(*) FROM pg_publication") == [(0,)]


def test_keyless_refuse_changes_nothing(admin: Database) -> None:
    admin.execute(KEYLESS)
    before = catalog(admin)
    with pytest.raises(IdentityMissing):
        init(make_config(admin))
    assert catalog(admin) == before


@pytest.mark.parametrize("keyless", ["full", "insert"])
def test_keyless_by_consent_keeps_the_application_working(admin: Database, keyless: str) -> None:
    admin.execute(KEYLESS + "INSERT INTO keyless VALUES (1)")
    init(make_config(admin, keyless=keyless))
    admin.execute("UPDATE keyless SET x = 2; DELETE FROM keyless")
    setting = admin.execute("SELECT relreplident::text FROM pg_class WHERE relname = 'keyless'")
    assert setting == [("f" if keyless == "full" else "d",)]


def test_changed_settings_change_the_publication(admin: Database) -> None:
    admin.execute(KEYLESS)
    config = make_config(admin, keyless="insert")
    init(config)
    names = "SELECT pubname, puballtables FROM pg_publication ORDER BY 1"
    assert admin.execute(names) == [(admin.name, False), (f"{admin.name}_insert", False)]
    admin.execute("DROP TABLE keyless")
    init(config)
    assert admin.execute(names) == [(admin.name, True)]
    with connect(admin.url) as conn:
        recorded = read_slot_settings(conn, admin.name)
    assert recorded is not None
    assert recorded.publications == (admin.name,)


def test_without_ddl_the_list_is_brought_up_to_date(admin: Database) -> None:
    config = make_config(admin, ddl=False)
    assert any("source.ddl is off" in step.text for step in init(config).steps if step.note)
    admin.execute("CREATE TABLE second (id int PRIMARY KEY)")
    init(config)
    listed = admin.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1")
    assert listed == [("keyed",), ("second",)]
    assert admin.execute("SELECT count(*) FROM pg_event_trigger WHERE evtname ~ '^_pgtide'") == [
        (0,)
    ]


def test_dry_run_changes_nothing_and_its_script_does_the_same(admin: Database) -> None:
    before = catalog(admin)
    result = init(make_config(admin), dry_run=True)
    assert catalog(admin) == before
    with admin.connect() as conn:
        conn.execute(script_of(result).encode())
    scripted = catalog(admin)
    assert scripted["slots"] == [(admin.name,)]
    # The log can still begin: the script's slot was never used and is made again.
    again = init(make_config(admin))
    assert again.slot_created
    assert [step.text for step in again.steps if not step.done and not step.note] == []
    assert catalog(admin) == scripted


def test_used_slot_is_never_made_again(admin: Database) -> None:
    init(make_config(admin))
    admin.execute("INSERT INTO keyed VALUES (1)")
    with admin.connect() as conn:
        conn.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [admin.name])
    result = init(make_config(admin))
    assert not result.slot_created
    assert result.consistent_point is None


def test_unknown_table_is_a_misspelling(admin: Database) -> None:
    with pytest.raises(ConfigError, match="unknown table pattern") as caught:
        init(make_config(admin, tables=["public.keyd"]))
    assert "public.keyed" in caught.value.hint


def test_log_of_another_source(admin: Database) -> None:
    config = make_config(admin)
    facts = init(config)
    with pytest.raises(OtherSource, match="another database"):
        init(config, log=LogSource("1", admin.name, admin.name))
    with pytest.raises(OtherSource, match="belongs to slot other"):
        init(config, log=LogSource(facts.system_identifier, admin.name, "other"))


def test_log_whose_slot_is_gone(admin: Database) -> None:
    config = make_config(admin)
    facts = init(config)
    destroy(config)
    with pytest.raises(LogGap):
        init(config, log=LogSource(facts.system_identifier, admin.name, admin.name))


def test_slot_of_another_plugin(admin: Database) -> None:
    other = Database.create(admin.server)
    try:
        other.execute(f"SELECT pg_create_logical_replication_slot('{admin.name}', 'pgoutput')")
        with pytest.raises(SourceError, match="belongs to something else"):
            init(make_config(admin))
        with pytest.raises(SourceError, match="belongs to something else"):
            destroy(make_config(admin))
    finally:
        other.drop()


def test_wal_level_is_checked_first(make_server: MakeServer) -> None:
    database = Database.create(make_server(wal_level="replica"))
    with pytest.raises(SourceError, match="wal_level is replica") as caught:
        init(make_config(database))
    assert "ALTER SYSTEM" in caught.value.hint


@pytest.mark.slow
@pytest.mark.versions
def test_every_release(version_database: Database) -> None:
    database = version_database
    database.execute(KEYED + "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id)")
    before = catalog(database)
    source = PreparedSource(database, tables=["public.*"])
    bodies = source.ddl(
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE x (a int);"
        " ALTER TABLE x ADD b float DEFAULT random(); ALTER TABLE x RENAME b TO c; DROP TABLE x"
    )
    assert [body["tag"] for body in bodies] == [
        "CREATE TABLE",
        "CREATE TABLE",
        "ALTER TABLE",
        "ALTER TABLE",
        "DROP TABLE",
    ]
    assert bodies[2]["rewrites"][0]["reasons"] == ["default"]
    assert tables(bodies[1])["x"]["replica_identity"] == "f"
    assert len([d for d in bodies[4]["dropped"] if d["original"]]) == 1
    database.execute("DROP TABLE p1")
    destroy(source.config)
    assert catalog(database) == before
