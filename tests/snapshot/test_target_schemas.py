"""The schema of a source at a Postgres target: complete, in one piece, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtide.errors import ConfigError, TargetError, TargetUnavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import connect
from pgtide.postgres.embedded import bundled_bin_dir
from pgtide.sinks.postgres import after_rows
from pgtide.sinks.postgres.after_rows import run_after_rows, store_after_rows
from pgtide.sinks.postgres.bookkeeping import prepare
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database, Server
from tests.fixtures.postgres import MakeServer, binaries
from tests.snapshot.schemas import COLUMNS, OBJECTS, SHOP, Copying, config_of


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    created = Database.create(server)
    yield created
    created.drop()


@pytest.fixture
def shop(make_captured: MakeCaptured, database: Database) -> Captured:
    database.execute(SHOP)
    return make_captured(database, keyless="full")


def finish(target: Database) -> int:
    """What the sink does at the end of the snapshot's rows."""
    with target.connect(autocommit=False) as connection:
        done = run_after_rows(connection, "replica")
        assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)
    return done


def test_everything_is_there_in_the_end(
    shop: Captured,
    target: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copying = Copying(config_of(shop, target))
    notes = copying.run()
    ((lsn, seq, log),) = target.execute("SELECT lsn::text, seq, log FROM pgtide.progress")
    assert (Lsn.parse(lsn), seq) == (copying.point - 2, 0)
    assert log.endswith(f"/{shop.database.name}/{shop.config.source.slot}")
    assert target.execute(COLUMNS) == shop.execute(COLUMNS)
    indexes = (
        "SELECT count(*) FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE relkind = 'r'"
    )
    indexes += " AND relnamespace = 'shop'::regnamespace"
    assert target.execute(indexes) == [(0,)], "rows are loaded without them"
    monkeypatch.setattr(after_rows, "SAY_EVERY_S", -1.0)
    with caplog.at_level("INFO", logger=after_rows.__name__):
        count = finish(target)
    assert count == len(copying.schemas.schemas["replica"].after)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == f"the rows are there: {count} indexes, constraints and the like are made"
    assert f"making constraint customers_pkey of shop.customers, 4 of {count}" in said
    assert target.execute(OBJECTS) == shop.execute(OBJECTS)
    assert target.execute("SELECT count(*) FROM pgtide.after_rows") == [(0,)]
    assert target.execute("SELECT relispopulated FROM pg_class WHERE relname = 'totals'") == [
        (True,)
    ]
    assert notes == []
    assert target.execute("SELECT evtname FROM pg_event_trigger") == []


def test_tables_that_are_not_selected(shop: Captured, target: Database) -> None:
    shop.execute(
        """
        CREATE FUNCTION shop.sad() RETURNS SETOF shop.customers LANGUAGE sql
            AS 'SELECT * FROM shop.customers';
        COMMENT ON FUNCTION shop.sad() IS 'sad';
        CREATE FUNCTION util.heard() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
        CREATE EVENT TRIGGER loud ON ddl_command_end EXECUTE FUNCTION util.heard();
        COMMENT ON CONSTRAINT orders_customer_fkey ON shop.orders IS 'gone too';
        ALTER TABLE shop.events ADD COLUMN phone text DEFAULT '555-1234';
        ALTER TABLE shop.events ADD COLUMN area text DEFAULT '555';
        """
    )
    rules = [{"table": "shop.events", "transform": {"column": "phone", "mask": {}}}]
    selected = ["shop.*", "!shop.customers"]
    copying = Copying(config_of(shop, target, tables=selected, rules=rules))
    notes = copying.run()
    finish(target)
    tables = target.execute(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p')"
        " AND relnamespace = 'shop'::regnamespace ORDER BY 1"
    )
    assert [name for (name,) in tables] == [
        *("cache", "events", "events_2024", "events_2025", "events_2025_1", "orders"),
    ]
    assert [note.removesuffix(" (pipeline replica)").partition(",")[0] for note in notes] == [
        "view shop.by_customer",
        "view shop.happy",
        "fk constraint shop.orders orders_customer_fkey",
        "function shop.sad()",
        "event trigger loud: it would act on DDL that is replayed",
    ]
    for schema in ('"Odd one"', "elsewhere"):
        assert target.execute("SELECT to_regnamespace(%s)", [schema]) == [(None,)]
    assert target.execute("SELECT 1 FROM pg_type WHERE typname = 'mood'") == [(1,)]
    defaults = "SELECT DISTINCT pg_get_expr(adbin, adrelid) FROM pg_attrdef"
    defaults += " WHERE adrelid IN (SELECT relid FROM pg_partition_tree('shop.events'))"
    kept = target.execute(defaults)
    assert kept == [("'555'::text",)], "not of a column that rules change"


def test_a_parent_that_is_not_selected(shop: Captured, target: Database) -> None:
    shop.execute("CREATE TABLE shop.child (more int, PRIMARY KEY (id)) INHERITS (shop.customers)")
    with pytest.raises(ConfigError, match="without another that is not selected") as raised:
        Copying(config_of(shop, target, tables=["shop.child"])).run()
    assert "shop.child" in raised.value.detail
    assert target.execute("SELECT to_regnamespace('pgtide')") == [(None,)]


def test_a_target_that_is_not_empty(shop: Captured, target: Database) -> None:
    target.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (); CREATE TABLE unrelated ()")
    with pytest.raises(TargetError, match="not empty") as raised:
        Copying(config_of(shop, target)).run()
    assert "shop.orders" in raised.value.detail
    assert target.execute("SELECT to_regnamespace('util')") == [(None,)]
    target.execute("DROP TABLE shop.orders")
    Copying(config_of(shop, target)).run()


def test_again_after_a_failure(shop: Captured, target: Database) -> None:
    with pytest.raises(InterruptedError):
        Copying(config_of(shop, target)).run(fail=True)
    assert target.execute("SELECT to_regnamespace('pgtide'), to_regnamespace('shop')") == [
        (None, None)
    ]
    Copying(config_of(shop, target)).run()
    assert target.execute(COLUMNS) == shop.execute(COLUMNS)


def test_what_fails_after_the_rows_names_itself(shop: Captured, target: Database) -> None:
    Copying(config_of(shop, target)).run()
    target.execute("INSERT INTO shop.customers (id, name) VALUES (1, 'secret'), (2, 'secret')")
    with pytest.raises(TargetError, match=r"constraint customers_name_key of shop\.customers") as e:
        finish(target)
    assert "could not create unique index" in e.value.detail
    assert "secret" not in f"{e.value.message} {e.value.detail} {e.value.hint}"
    assert target.execute("SELECT count(*) FROM pg_index WHERE indrelid = 'shop.orders'::regclass")
    assert target.execute("SELECT count(*) > 10 FROM pgtide.after_rows") == [(True,)]
    target.execute("DELETE FROM shop.customers WHERE id = 2")
    assert finish(target) > 10


def test_what_fails_after_the_rows_for_a_passing_reason(target: Database) -> None:
    """A deadlock, a server that gave up or may not write, a disk: tried again, never final."""
    with target.connect() as connection:
        prepare(connection)
        for state in ("40P01", "57014", "25006", "58030", "53100"):
            raising = f"DO $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END$$"
            store_after_rows(connection, "replica", [raising])
            with pytest.raises(TargetUnavailable, match="did not make"), connection.transaction():
                run_after_rows(connection, "replica")


def test_roles_that_the_target_lacks(
    shop: Captured, make_server: MakeServer, target: Database
) -> None:
    shop.execute("CREATE ROLE grownup; ALTER POLICY grown ON shop.customers TO grownup")
    shop.database.roles.append("grownup")
    elsewhere = Database.create(make_server())
    with pytest.raises(TargetError, match="lacks roles: grownup"):
        Copying(config_of(shop, elsewhere)).run()
    assert elsewhere.execute("SELECT to_regnamespace('shop')") == [(None,)]
    elsewhere.execute("CREATE ROLE grownup")
    Copying(config_of(shop, elsewhere)).run()
    assert finish(elsewhere) > 10


def test_rules_that_change_tables(shop: Captured, target: Database) -> None:
    for more in (
        {"rules": [{"table": "shop.orders", "exclude": ["total"]}]},
        {"rules": [{"table": "shop.events", "exclude": ["at"]}]},
        {"routes": [{"table": "shop.orders", "to": "other.orders"}]},
    ):
        with pytest.raises(ConfigError, match=r"does not keep shop\.(orders|events) as it is"):
            Copying(config_of(shop, target, **more)).run()


def test_two_pipelines_with_one_target(shop: Captured, target: Database) -> None:
    config = config_of(shop, target)
    twice = {**config.pipelines, "again": config.pipelines["replica"]}
    copying = Copying(config.model_copy(update={"pipelines": twice}))
    copying.schemas.pipelines = ["replica", "again"]
    with pytest.raises(ConfigError, match="same target"):
        copying.run()


def test_a_target_that_is_the_source(shop: Captured) -> None:
    """Its own tables are in the way then; nobody is told to drop them."""
    with pytest.raises(ConfigError, match="is the source") as raised:
        Copying(config_of(shop, shop.database.tcp_url)).run()
    assert "drop" not in raised.value.hint


def test_the_least_rights(
    make_captured: MakeCaptured, database: Database, target: Database
) -> None:
    """A role that may read the tables and their schemas, with a password; a target that it owns."""
    database.execute(SHOP)
    url = database.create_role("LOGIN REPLICATION BYPASSRLS")
    for schema in ("shop", '"Odd one"'):
        database.execute(f"GRANT USAGE ON SCHEMA {schema} TO {database.roles[0]}")
        database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {database.roles[0]}")
    captured = make_captured(database, url=url, admin_url=database.url, keyless="full")
    owner = target.create_role("LOGIN")
    target.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(TargetError, match="cannot make schema") as raised:
        Copying(config_of(captured, owner)).run()
    assert "pgtide check" in raised.value.hint
    target.execute(f"GRANT CREATE ON DATABASE {target.name} TO {target.roles[0]}")
    target.execute(f"GRANT CREATE ON SCHEMA public TO {target.roles[0]}")
    notes = Copying(config_of(captured, owner)).run()
    with connect(owner) as connection, connection.transaction():
        run_after_rows(connection, "replica")
    assert notes == []
    assert target.execute(COLUMNS) == database.execute(COLUMNS)
    target.execute(f"DROP OWNED BY {target.roles[0]} CASCADE")
    database.execute(f"DROP OWNED BY {database.roles[0]}")


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("old", "new"), [(14, 18), (18, 15), (16, 14), (15, 17)])
def test_between_releases(
    make_server: MakeServer, make_captured: MakeCaptured, old: int, new: int
) -> None:
    source = Database.create(make_server(binaries(old)))
    target = Database.create(make_server(binaries(new)))
    source.execute(SHOP)
    captured = make_captured(source, keyless="full")
    Copying(config_of(captured, target)).run()
    finish(target)
    assert target.execute(COLUMNS) == source.execute(COLUMNS)
    assert target.execute(OBJECTS) == source.execute(OBJECTS)


@pytest.mark.slow
@pytest.mark.versions
def test_what_an_older_target_does_not_know(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    source = Database.create(make_server(binaries(18)))
    target = Database.create(make_server(binaries(15)))
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id) VIRTUAL)")
    captured = make_captured(source)
    with pytest.raises(TargetError, match=r"cannot make table public\.t") as raised:
        Copying(config_of(captured, target)).run()
    assert "The target is Postgres 15, the source 18" in raised.value.hint
    assert target.execute("SELECT to_regclass('t'), to_regnamespace('pgtide')") == [(None, None)]


@pytest.mark.slow
@pytest.mark.versions
def test_extensions_that_the_target_lacks(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    source = Database.create(make_server(bundled_bin_dir(16)))
    target = Database.create(make_server(binaries(15)))
    source.execute("CREATE EXTENSION vector; CREATE TABLE t (id int PRIMARY KEY)")
    captured = make_captured(source)
    with_extension = Database.create(make_server(bundled_bin_dir(16)))
    assert Copying(config_of(captured, target)).run() == [
        "extension vector, which the target does not have (pipeline replica)"
    ]
    target.execute("DROP TABLE t")
    source.execute("ALTER TABLE t ADD COLUMN v vector(3)")
    with pytest.raises(TargetError, match="lacks extensions: vector"):
        Copying(config_of(captured, target)).run()
    Copying(config_of(captured, with_extension)).run()
    assert with_extension.execute("SELECT extname FROM pg_extension ORDER BY 1") == [
        ("plpgsql",),
        ("vector",),
    ]
