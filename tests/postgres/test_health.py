"""Each line of ``pgtide check``: what it finds, and the command it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgtide.log.source import LogSource
from pgtide.postgres.catalog import ServerFacts
from pgtide.postgres.health import LogProbe, run_checks
from pgtide.postgres.server_checks import check_encoding, check_primary, check_version
from pgtide.postgres.setup import init
from pgtide.postgres.teardown import destroy
from pgtide.postgres.verdict import Check
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.postgres.source import make_config

LOG = LogProbe("log")


def checks(database: Database, log: LogProbe = LOG, **source: Any) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in run_checks(make_config(database, **source), log):
        found.setdefault(check.name, []).append(check)
    return found


def failures(found: dict[str, list[Check]]) -> set[str]:
    return {check.name for group in found.values() for check in group if check.level == "fail"}


@pytest.fixture
def prepared(database: Database) -> Database:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    init(make_config(database))
    return database


def test_before_init(database: Database) -> None:
    found = checks(database)
    assert failures(found) == {"publication", "slot"}
    assert found["slot"][0].hint == "Run: pgtide init"
    assert found["ddl trigger"][0].level == "warn"


def test_after_init_all_is_well(prepared: Database) -> None:
    found = checks(prepared)
    assert failures(found) == set()
    fine = [name for name, group in found.items() if all(c.level == "ok" for c in group)]
    assert {"server", "wal_level", "slots", "wal senders", "role", "connection"} <= set(fine)
    assert {"ddl trigger", "publication", "replica identity", "slot", "clock"} <= set(fine)


def test_role_with_the_documented_rights(database: Database) -> None:
    database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    url = database.create_role("LOGIN REPLICATION")
    init(make_config(database, url=url, admin_url=database.url))
    found = checks(database, url=url)
    assert failures(found) == set()
    assert [c.level for c in found["role"]] == ["ok", "warn"]
    assert "pg_read_all_data" in found["role"][1].hint
    assert [c.level for c in checks(database, url=url, snapshot="never")["role"]] == ["ok"]
    destroy(make_config(database, url=url, admin_url=database.url))


def test_role_that_may_nothing(prepared: Database) -> None:
    url = prepared.create_role("LOGIN")
    found = checks(prepared, url=url)
    assert {"role", "connection", "ddl trigger", "publication"} <= failures(found)
    assert found["role"][0].hint == f'Run: ALTER ROLE "{prepared.roles[-1]}" REPLICATION;'


def test_wal_level(make_server: MakeServer) -> None:
    database = Database.create(make_server(wal_level="replica"))
    found = checks(database)
    assert "ALTER SYSTEM SET wal_level = logical" in found["wal_level"][0].hint


def test_no_room_and_limits(make_server: MakeServer) -> None:
    server = make_server(
        max_replication_slots="1",
        max_wal_senders="1",
        max_slot_wal_keep_size="2GB",
        temp_file_limit="1GB",
    )
    database = Database.create(server)
    database.execute("SELECT pg_create_physical_replication_slot('other')")
    found = checks(database)
    assert "max_replication_slots = 11" in found["slots"][0].hint
    assert (found["wal limit"][0].level, found["temp files"][0].level) == ("ok", "warn")
    assert "SET temp_file_limit = -1" in found["temp files"][0].hint


@pytest.mark.parametrize(
    ("damage", "name", "hint"),
    [
        ("DROP EVENT TRIGGER _pgtide_sql_drop", "ddl trigger", "Run: pgtide init"),
        (
            "ALTER EVENT TRIGGER _pgtide_sql_drop ENABLE",
            "ddl trigger",
            "Run: ALTER EVENT TRIGGER _pgtide_sql_drop ENABLE ALWAYS;",
        ),
        ("DROP PUBLICATION {name}", "publication", "Run: pgtide init"),
        (
            "ALTER PUBLICATION {name} SET (publish = 'insert')",
            "publication",
            "Accept it with: pgtide init",
        ),
        ("SELECT pg_drop_replication_slot('{name}')", "slot", "Run: pgtide init"),
        (
            "ALTER TABLE keyed REPLICA IDENTITY NOTHING",
            "replica identity",
            'Add a primary key, or run: ALTER TABLE "public"."keyed" REPLICA IDENTITY FULL;',
        ),
    ],
)
def test_damage_is_found_with_its_remedy(
    prepared: Database, damage: str, name: str, hint: str
) -> None:
    prepared.execute(damage.format(name=prepared.name))
    found = checks(prepared)
    assert failures(found) == {name}
    assert hint in [check.hint for check in found[name]]


def test_keyless_tables_before_init(database: Database) -> None:
    database.execute("CREATE TABLE keyless (x int)")
    (check,) = checks(database)["replica identity"]
    assert check.level == "fail"
    assert "public.keyless" in check.message
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL;' in check.hint


def test_insert_only_tables_are_a_warning(database: Database) -> None:
    database.execute("CREATE TABLE keyless (x int)")
    init(make_config(database, keyless="insert"))
    found = checks(database, keyless="insert")
    assert failures(found) == set()
    assert found["replica identity"][0].message == "only inserts of public.keyless are captured"


def test_list_publication_does_not_have_the_new_table(database: Database) -> None:
    database.execute("CREATE TABLE one (id int PRIMARY KEY)")
    init(make_config(database, ddl=False))
    database.execute("CREATE TABLE two (id int PRIMARY KEY)")
    found = checks(database, ddl=False)
    assert "public.two" in found["publication"][0].message


def test_patterns(prepared: Database) -> None:
    found = checks(prepared, tables=["public.keyd", "later.*", "public.keyed"])["tables"]
    assert [(c.level, c.hint) for c in found] == [
        ("fail", "Did you mean public.keyed?"),
        ("warn", ""),
    ]


def test_log(prepared: Database) -> None:
    system = prepared.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    mine = LogSource(system, prepared.name, prepared.name)
    assert checks(prepared, LogProbe("log", mine))["log"][0].level == "ok"
    other = LogSource("1", prepared.name, prepared.name)
    assert checks(prepared, LogProbe("log", other))["log"][0].level == "fail"
    broken = LogProbe(str(Path("log")), problem="read-only")
    assert "read-only" in checks(prepared, broken)["log"][0].message


def test_facts_that_no_test_server_has() -> None:
    facts = ServerFacts(130_004, "1", 1, "d", "logical", True, "SQL_ASCII")
    assert check_version(facts).level == "fail"
    assert check_primary(facts).level == "fail"
    assert check_encoding(facts).level == "warn"


@pytest.mark.slow
@pytest.mark.versions
def test_every_release(version_database: Database) -> None:
    version_database.execute("CREATE TABLE keyed (id int PRIMARY KEY)")
    init(make_config(version_database))
    assert failures(checks(version_database)) == set()
