"""What the DDL trigger says about each kind of command."""

from __future__ import annotations

import pytest

from tests.fixtures.databases import Database
from tests.postgres.source import PreparedSource, tables
from tests.postgres.test_catalog import BELOW, DOMAINS


@pytest.fixture
def source(database: Database) -> PreparedSource:
    return PreparedSource(database)


def test_create_table_is_described(source: PreparedSource) -> None:
    body = source.one(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " at timestamptz NOT NULL DEFAULT now(), price numeric(10,2),"
        ' double numeric GENERATED ALWAYS AS (price * 2) STORED, "Größe" text COLLATE "C")'
    )
    assert (body["v"], body["tag"], body["ordinal"]) == (1, "CREATE TABLE", 1)
    table = tables(body)["t"]
    assert table["schema"] == "public"
    assert table["identity"] == "public.t"
    assert table["command_tag"] == "CREATE TABLE"
    assert (table["kind"], table["persistence"], table["replica_identity"]) == ("r", "p", "d")
    assert table["primary_key"] == [1]
    assert table["root"] is None
    names = [column["name"] for column in table["columns"]]
    assert names == ["id", "at", "price", "double", "Größe"]
    number, at, price, double, size = table["columns"]
    assert (number["identity"], number["type"], number["nullable"]) == ("a", "bigint", False)
    assert at["default"] == "now()"
    assert (price["type"], price["typmod"], price["attnum"]) == ("numeric(10,2)", 655366, 3)
    assert double["generated"] == "s"
    assert size["collation"] == '"C"'


def test_domains_and_arrays_are_described_as_the_catalog_does(source: PreparedSource) -> None:
    source.execute(DOMAINS + "; DROP TABLE t")
    body = source.one(DOMAINS[DOMAINS.index("CREATE TABLE") :])
    ((mood,),) = source.database.execute("SELECT 'mood'::regtype::oid::bigint")
    found = {
        column["name"]: (column["base_oid"], column["base_typmod"], column["element_oid"])
        for column in tables(body)["t"]["columns"]
    }
    assert found == BELOW | {"h": (0, -1, mood)}


def test_missing_value_makes_add_column_exact(source: PreparedSource) -> None:
    source.execute("SET timezone = 'Asia/Tokyo'; CREATE TABLE t (id int PRIMARY KEY)")
    body = source.one(
        "SET timezone = 'Asia/Tokyo'; SET datestyle = 'German';"
        " ALTER TABLE t ADD COLUMN at timestamptz DEFAULT '2024-05-06 07:08:09+00'"
    )
    (column,) = [c for c in tables(body)["t"]["columns"] if c["name"] == "at"]
    assert column["missing"] == '{"2024-05-06 07:08:09+00"}'
    assert body["rewrites"] == []


def test_each_statement_of_a_string_is_counted(source: PreparedSource) -> None:
    bodies = source.ddl(
        "CREATE TABLE a (); CREATE TEMP TABLE b (); SELECT 1; CREATE TABLE c ();"
        " DO 'BEGIN CREATE TABLE d (); END'; CREATE TABLE e ()"
    )
    assert [(b["ordinal"], b["top_ordinal"]) for b in bodies] == [
        (1, 1),
        (3, 3),
        (4, None),
        (5, 4),
    ]
    assert len({body["query"] for body in bodies}) == 1
    assert source.one("CREATE TABLE f ()")["ordinal"] == 1


def test_counting_goes_on_after_a_commit_in_the_string(source: PreparedSource) -> None:
    bodies = source.ddl("BEGIN; CREATE TABLE a (); COMMIT; CREATE TABLE b ()")
    assert [body["ordinal"] for body in bodies] == [1, 2]


def test_caller_is_reported_and_not_the_owner(source: PreparedSource) -> None:
    source.database.create_role(name=f"{source.database.name}_app")
    source.execute(
        f'GRANT CREATE ON SCHEMA public TO "{source.database.name}_app"; CREATE SCHEMA "Odd"'
    )
    body = source.one(
        f'SET ROLE "{source.database.name}_app"; SET search_path = "Odd", public, pg_catalog;'
        " CREATE TABLE public.t (id int PRIMARY KEY)"
    )
    assert body["search_path"] == '"Odd", public, pg_catalog'
    assert body["user"] == f"{source.database.name}_app"
    assert body["session_user"] == "postgres"
    source.execute(f'DROP OWNED BY "{source.database.name}_app"')


def test_nothing_in_the_callers_path_is_run(source: PreparedSource) -> None:
    source.execute(
        "CREATE SCHEMA evil;"
        " CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$;"
        " CREATE FUNCTION evil.format_type(oid, int) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$;"
        " CREATE DOMAIN evil.text AS int"
    )
    body = source.one("SET search_path = evil, pg_catalog, public; CREATE TABLE public.t (a int4)")
    assert body["search_path"] == "evil, pg_catalog, public"
    assert tables(body)["t"]["columns"][0]["type"] == "integer"


def test_context_shows_the_statement_inside_a_function(source: PreparedSource) -> None:
    body = source.one("DO $$ BEGIN EXECUTE 'CREATE TABLE inner_one (id int)'; END $$")
    assert 'SQL statement "CREATE TABLE inner_one (id int)"' in body["context"]


def test_sql_functions_on_the_stack_bring_their_source(source: PreparedSource) -> None:
    source.execute("CREATE FUNCTION make() RETURNS void LANGUAGE sql AS 'CREATE TABLE made ()'")
    assert source.one("SELECT make()")["functions"] == [
        {"name": "make", "source": "CREATE TABLE made ()"}
    ]


def test_replica_sessions_are_not_exempt(source: PreparedSource) -> None:
    assert source.one("SET session_replication_role = replica; CREATE TABLE t ()")


def test_noop_has_no_objects(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t ()")
    assert source.one("CREATE TABLE IF NOT EXISTS t ()")["objects"] == []
    assert source.one("DROP TABLE IF EXISTS nowhere")["dropped"] == []


def test_drop_names_what_was_dropped(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (id serial PRIMARY KEY); CREATE VIEW v AS SELECT * FROM t")
    oid = source.execute("SELECT 't'::regclass::oid::bigint")[0][0]
    body = source.one("DROP TABLE t CASCADE")
    assert body["objects"] == []
    original = [d for d in body["dropped"] if d["original"]]
    assert [(d["type"], d["schema"], d["identity"], d["oid"]) for d in original] == [
        ("table", "public", "public.t", oid)
    ]
    assert "public.v" in {d["identity"] for d in body["dropped"]}


def test_dropping_a_type_describes_the_tables_that_lose_a_column(source: PreparedSource) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, m mood, n text)"
    )
    body = source.one("DROP TYPE mood CASCADE")
    assert [c["attnum"] for c in tables(body)["t"]["columns"]] == [1, 3]
    assert tables(body)["t"]["listed"] is False


def test_rewrites_are_marked(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    oid = source.execute("SELECT 't'::regclass::oid::bigint")[0][0]
    body = source.one(
        "ALTER TABLE t ADD c float DEFAULT random(), ALTER b TYPE int USING length(b)"
    )
    assert body["rewrites"] == [
        {"oid": oid, "schema": "public", "table": "t", "reason": 6, "reasons": ["default", "type"]}
    ]
    assert source.one("ALTER TABLE t ADD d int DEFAULT 1")["rewrites"] == []
    assert source.one("ALTER TABLE t SET UNLOGGED")["rewrites"][0]["reasons"] == ["persistence"]


def test_alter_describes_every_descendant(source: PreparedSource) -> None:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        " CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);"
        " CREATE TABLE p11 PARTITION OF p1 FOR VALUES FROM (0) TO (5);"
        " CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)"
    )
    found = tables(source.one("ALTER TABLE p ADD COLUMN x int"))
    assert {name: item["listed"] for name, item in found.items()} == {
        "p": True,
        "p1": False,
        "p11": False,
    }
    assert found["p11"]["root"] == {"oid": found["p"]["oid"], "schema": "public", "table": "p"}
    assert [c["name"] for c in found["p11"]["columns"]] == ["id", "x"]
    assert set(tables(source.one("ALTER TABLE parent RENAME id TO key"))) == {"parent", "child"}


def test_descendants_have_the_plain_name_of_their_schema(source: PreparedSource) -> None:
    """The server quotes what it prints of an object that a command does not list."""
    source.execute(
        'CREATE SCHEMA "My ""App"; CREATE TABLE p (id int) PARTITION BY RANGE (id);'
        ' CREATE TABLE "My ""App"."P 1" PARTITION OF p FOR VALUES FROM (0) TO (9)'
    )
    leaf = tables(source.one("ALTER TABLE p ADD COLUMN x int"))["P 1"]
    assert (leaf["schema"], leaf["identity"]) == ('My "App', '"My ""App"."P 1"')


def test_attach_and_detach_describe_the_partition(source: PreparedSource) -> None:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        " CREATE TABLE p1 (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)"
    )
    attached = tables(source.one("ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9)"))
    assert attached["p1"]["root"]["table"] == "p"
    detached = tables(source.one("ALTER TABLE p DETACH PARTITION p1"))
    assert set(detached) == {"p", "p1"}
    assert detached["p1"]["root"] is None


POINTS = ("by_column", "by_array", "by_domain", "by_nesting")


@pytest.mark.parametrize(
    ("command", "described"),
    [
        ("CREATE INDEX i ON t (b)", {"t"}),
        ("ALTER TABLE t RENAME CONSTRAINT t_pkey TO key", {"t"}),
        ("ALTER INDEX t_pkey RENAME TO key", {"t"}),
        ("ALTER TABLE t RENAME TO u", {"u"}),
        ("ALTER TABLE t RENAME b TO c", {"t"}),
        ("ALTER SCHEMA s RENAME TO s2", {"in_s"}),
        ("ALTER TYPE mood RENAME TO temper", {"moody"}),
        ("ALTER TYPE pair ADD ATTRIBUTE z int CASCADE", {"typed", "pair"}),
        ("ALTER TYPE point3 ADD ATTRIBUTE w int", {"point3", "edge", *POINTS}),
        ("ALTER TYPE point3 ALTER ATTRIBUTE z TYPE text", {"point3", "edge"}),
        ("ALTER TYPE point3 DROP ATTRIBUTE z", {"point3", "edge", *POINTS}),
        ("ALTER TYPE point3 RENAME ATTRIBUTE z TO h", {"point3", "edge", *POINTS}),
        ("ALTER TYPE point3 RENAME TO point4", {"point4", "edge", *POINTS}),
        ("CREATE TABLE copy AS SELECT 1 AS x", {"copy"}),
        ("SELECT 1 AS x INTO copy", {"copy"}),
        ("CREATE SCHEMA more CREATE TABLE inside (id int PRIMARY KEY)", {"inside"}),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1 AS x", {"m"}),
    ],
)
def test_tables_behind_a_command(source: PreparedSource, command: str, described: set[str]) -> None:
    source.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE SCHEMA s;"
        " CREATE TABLE s.in_s (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('a');"
        " CREATE TABLE moody (id int PRIMARY KEY, m mood[]);"
        " CREATE TYPE pair AS (x int, y int); CREATE TABLE typed OF pair (PRIMARY KEY (x));"
        " CREATE TYPE point3 AS (x int, z int); CREATE TYPE edge AS (f point3, t point3);"
        " CREATE DOMAIN high AS point3 CHECK ((VALUE).x > 0);"
    )
    if "ALTER ATTRIBUTE" not in command:  # refused while a table stores values of the type
        source.execute(
            "CREATE TABLE by_column (id int PRIMARY KEY, p point3);"
            " CREATE TABLE by_array (id int PRIMARY KEY, p point3[]);"
            " CREATE TABLE by_domain (id int PRIMARY KEY, p high);"
            " CREATE TABLE by_nesting (id int PRIMARY KEY, e edge[]);"
        )
    assert set(tables(source.one(command))) == described


def test_publication_commands_are_included(source: PreparedSource) -> None:
    name = source.config.source.slot
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION other FOR TABLE t")
    altered = source.one(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
    assert [(o["type"], o["identity"]) for o in altered["objects"]] == [("publication", name)]
    assert source.one("ALTER PUBLICATION other DROP TABLE t")["tag"] == "ALTER PUBLICATION"
    dropped = source.one("DROP PUBLICATION other")["dropped"]
    assert [(d["type"], d["identity"]) for d in dropped] == [("publication", "other")]


def test_rolled_back_commands_say_nothing(source: PreparedSource) -> None:
    bodies = source.ddl(
        "DO $$ BEGIN BEGIN CREATE TABLE gone (); RAISE 'no'; EXCEPTION WHEN OTHERS THEN END;"
        " CREATE TABLE kept (); END $$"
    )
    assert [list(tables(body)) for body in bodies] == [["kept"]]


def test_commands_that_run_outside_a_transaction(source: PreparedSource) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
    assert source.one("CREATE INDEX CONCURRENTLY i ON t (x)")["tag"] == "CREATE INDEX"
    assert source.one("DROP INDEX CONCURRENTLY i")["tag"] == "DROP INDEX"
