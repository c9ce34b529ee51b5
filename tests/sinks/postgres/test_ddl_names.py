"""Tables that a pipeline does not select, or that have another name at the target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtide.errors import TargetError
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.ddl_names import Names
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.sinks.postgres.ddl_replica import Replica, run_script, second_database
from tests.sinks.postgres.ddl_scripts import Script

ROUTES = {
    ("public", "users"): ("crm", "customers"),
    ("public", "orders"): ("public", "Bought"),
    ("public", "leads"): ("crm", "leads"),
    ("shop", "leads"): ("shop", "leads"),
}
ROUTED = Names(
    target=lambda table: ROUTES.get(table, table),
    routed=True,
    knows=lambda table: table[0] in ("public", "shop"),
)


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    with second_database(server) as database:
        yield database


def replayed(captured: Captured, target: Database, script: Script, names: Names) -> Replica:
    target.execute("CREATE SCHEMA crm")
    run_script(captured.database, script)
    captured.capture()
    replica = Replica(target, DdlKinds(["*"]), names)
    replica.apply(captured.events())
    return replica


def relations(database: Database) -> set[str]:
    rows = database.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'i')"
        " AND relnamespace::regnamespace::text IN ('public', 'crm', 'shop')"
    )
    return {name for (name,) in rows}


# Selected ------------------------------------------------------------------------------------


def only(*tables: str) -> Names:
    return Names(selects=lambda table: table[1] in tables)


def test_tables_that_are_not_selected(captured: Captured, target: Database) -> None:
    replica = replayed(
        captured,
        target,
        [
            "CREATE TABLE mine (id int PRIMARY KEY)",
            "CREATE TABLE other (id int); CREATE INDEX ON other (id)",
            "CREATE VIEW seen AS SELECT * FROM other",
            "COMMENT ON TABLE other IS 'x'",
            "CREATE TABLE parted (id int) PARTITION BY LIST (id)",
            "CREATE TABLE part PARTITION OF parted DEFAULT",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT count(*)::int FROM other'",
            "CREATE TYPE mood AS ENUM ('a')",
            "CREATE SCHEMA shop CREATE TABLE mine (id int) CREATE TABLE other (id int)"
            " CREATE INDEX ON other (id)",
            "DROP VIEW seen",
            "DROP TABLE other, mine",
        ],
        only("mine", "parted"),
    )
    assert relations(target) == {"parted", "part", "shop.mine"}
    assert target.execute("SELECT 'mood'::regtype::text, 'f()'::regprocedure::text") == [
        ("mood", "f()")
    ]
    skipped = [replay.payload.tag for replay in replica.replays if replay.skipped]
    assert skipped == ["CREATE TABLE", "CREATE INDEX", "CREATE VIEW", "COMMENT", "DROP VIEW"]


@pytest.mark.parametrize("names", [only("mine"), only("yours")])
def test_a_table_that_is_selected_under_one_name(
    captured: Captured, target: Database, names: Names
) -> None:
    script: Script = ["CREATE TABLE mine (id int)", "ALTER TABLE mine RENAME TO yours"]
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replayed(captured, target, script, names)
    assert "under only one of its two names" in caught.value.detail


def test_parts_of_a_table_that_are_renamed_as_tables(captured: Captured, target: Database) -> None:
    """As Rails does: which patterns fit their names does not matter."""
    replica = replayed(
        captured,
        target,
        [
            "CREATE TABLE mine (id serial PRIMARY KEY); CREATE INDEX i ON mine (id)",
            "ALTER TABLE mine_id_seq RENAME TO numbers",
            "ALTER TABLE i RENAME TO j; ALTER INDEX mine_pkey RENAME TO key",
        ],
        only("mine"),
    )
    assert not any(replay.skipped for replay in replica.replays)
    assert relations(target) == {"mine", "j", "key"}


MASKED = Names(alike=lambda one, other: one == other)
ROOT_ONLY = Names(chosen=lambda table: table[1] == "p")


@pytest.mark.parametrize("names", [MASKED, ROOT_ONLY])
def test_a_partition_that_did_not_come_as_one(
    captured: Captured, target: Database, names: Names
) -> None:
    """Its rows are not those of the whole table: others, or rules see to other values."""
    attach = "ALTER TABLE p ATTACH PARTITION plain FOR VALUES FROM (0) TO (10)"
    script: Script = [
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE plain PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE p DETACH PARTITION plain",
        "INSERT INTO plain VALUES (2)",
        attach,
    ]
    run_script(captured.database, script)
    captured.capture()
    commands = captured.events("ddl")
    Replica(target).apply(commands[:-1])
    target.execute("INSERT INTO plain VALUES (1)")
    with pytest.raises(TargetError, match="takes rows in that did not come as those") as caught:
        Replica(target, names=names).apply(commands[-1:])
    assert "empty it at the target first" in caught.value.detail
    target.execute("TRUNCATE plain")
    Replica(target, names=names).apply(commands[-1:])
    assert relations(target) >= {"p", "plain"}


# Routed --------------------------------------------------------------------------------------


def test_tables_under_other_names(captured: Captured, target: Database) -> None:
    replayed(
        captured,
        target,
        [
            "CREATE TABLE users (id serial PRIMARY KEY, orders int, CHECK (orders > 0))",
            "CREATE TABLE public . orders (id int PRIMARY KEY, usr int REFERENCES users (id))",
            "INSERT INTO users VALUES (1, 2); INSERT INTO orders VALUES (7, 1)",
            'CREATE INDEX CONCURRENTLY é ON /* ü */ public."users" (orders)',
            "ALTER TABLE ONLY users ADD COLUMN at timestamptz DEFAULT now()",
            "ALTER TABLE orders RENAME COLUMN usr TO users",
            "COMMENT ON TABLE users IS 'users'; COMMENT ON COLUMN users.orders IS 'orders'",
            "CREATE TABLE copies AS SELECT * FROM users",
            "CREATE TABLE gone (id int); DROP TABLE gone, copies",
            "INSERT INTO users VALUES (2, 3)",
            "ALTER TABLE public.orders RENAME TO leads",
            "CREATE SCHEMA shop",
            "ALTER TABLE public.leads SET SCHEMA shop",
            "INSERT INTO shop.leads VALUES (8, 1)",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ],
        ROUTED,
    )
    expected = {"crm.customers", "crm.customers_pkey", 'crm."é"', "shop.leads"}
    assert expected <= relations(target)
    assert not relations(target) & {"users", "orders", "leads", "gone", "copies"}
    assert target.execute("SELECT * FROM shop.leads") == [(7, 1), (8, 1)]
    source = captured.execute("SELECT * FROM users ORDER BY 1")
    assert target.execute("SELECT * FROM crm.customers ORDER BY 1") == source


REFUSED = [
    ("CREATE VIEW v AS SELECT 1 AS a FROM users", "mentions users"),
    ("CREATE VIEW v AS SELECT 1 AS a FROM public.users", "mentions users"),
    (
        "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM users'",
        "mentions users",
    ),
    ("ALTER TABLE users ADD CHECK (users.id > 0)", "inside an expression"),
    ("CREATE TABLE other (u users)", "inside an expression"),
]


@pytest.mark.parametrize(("statement", "reason"), REFUSED)
def test_names_that_may_mean_something_else(
    captured: Captured, target: Database, statement: str, reason: str
) -> None:
    script: Script = ["CREATE TABLE users (id int PRIMARY KEY)", statement]
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replayed(captured, target, script, ROUTED)
    assert reason in caught.value.detail
    assert "pgtide skip" in caught.value.hint


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD password text",
        "ALTER TABLE u DROP password",
        "ALTER TABLE u RENAME password TO other",
        "CREATE INDEX ON u (id)",
        "CREATE TABLE v AS SELECT 1 AS password",
    ],
)
def test_columns_that_rules_change(captured: Captured, target: Database, statement: str) -> None:
    """A rule for all tables is about those that have the column."""
    names = Names(reshapes=lambda _, columns: "password" in columns)
    first: Script = [
        "CREATE TABLE t (id int)",
        "ALTER TABLE t ADD a int",
        "INSERT INTO t VALUES (1)",
    ]
    replayed(captured, target, first, names)
    captured.execute("CREATE TABLE u (id int, password text)")
    captured.execute(statement)
    captured.capture()
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        Replica(target, names=names).apply(captured.events("ddl")[-1:])
    assert "Rules leave out, rename or change columns" in caught.value.detail
