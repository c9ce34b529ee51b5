"""What DDL events mean for a target: run, left out for a reason, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtide.errors import ConfigError, TargetError, TargetUnavailable
from pgtide.position import Position
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.ddl import Place, plan_ddl
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.ddl_names import Names
from pgtide.sinks.postgres.ddl_run import run_ddl
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.sinks.postgres.ddl_replica import Replica, run_script, schema_of, second_database
from tests.sinks.postgres.ddl_scripts import Script

PLACE = Place("copy", Position.parse("16/B374D848:3"))


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    with second_database(server) as database:
        yield database


def replayed(captured: Captured, target: Database, script: Script, *kinds: str) -> Replica:
    run_script(captured.database, script)
    captured.capture()
    replica = Replica(target, DdlKinds(kinds or ("*",)))
    replica.apply(captured.events())
    return replica


def columns(database: Database, table: str) -> list[Any]:
    rows = database.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        [table],
    )
    return [name for (name,) in rows]


# Kinds ---------------------------------------------------------------------------------------

LEFT_OUT: Script = [
    "CREATE TABLE t (id int PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS t (other int)",
    "CREATE PUBLICATION mine FOR TABLE t",
    "DROP PUBLICATION mine",
    "CREATE INDEX i ON t (id)",
    "GRANT SELECT ON t TO PUBLIC",
    "ALTER TABLE t OWNER TO CURRENT_USER",
    "ALTER TABLE t ADD COLUMN a int, OWNER TO CURRENT_USER",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
    "CREATE TEMP TABLE passing (id int)",
]


def test_what_is_left_out_and_why(captured: Captured, target: Database) -> None:
    replica = replayed(captured, target, LEFT_OUT)
    assert [replay.skipped for replay in replica.replays] == [
        "",
        "it did nothing (IF EXISTS, IF NOT EXISTS)",
        "publications belong to the source",
        "publications belong to the source",
        "",
        "kind grant is not selected",
        "kind owner is not selected",
        "",
        "kind grant is not selected",
    ]
    assert columns(target, "public.t") == ["id", "a"]
    sql = [step.sql for replay in replica.replays for step in replay.steps]
    assert sql[-1] == "ALTER TABLE t ADD COLUMN a integer"


def test_kinds_that_are_chosen(captured: Captured, target: Database) -> None:
    replica = replayed(captured, target, LEFT_OUT, "*", "!index", "grant", "owner")
    skipped = [(r.payload.tag, r.skipped) for r in replica.replays if r.skipped]
    assert ("CREATE INDEX", "kind index is not selected") in skipped
    assert {tag for tag, _ in skipped}.isdisjoint({"GRANT", "ALTER TABLE"})
    ((allowed,),) = target.execute(
        "SELECT bool_or(grantee = 'PUBLIC') FROM information_schema.role_table_grants"
        " WHERE table_name = 't'"
    )
    assert allowed


def test_no_ddl_at_all(captured: Captured, target: Database) -> None:
    replica = Replica(target, DdlKinds([]))
    run_script(captured.database, ["CREATE TABLE t (id int PRIMARY KEY)"])
    captured.capture()
    replica.apply(captured.events("ddl"))
    assert [replay.skipped for replay in replica.replays] == ["the target takes no DDL"]
    unknown = plan_ddl({"tag": "", "unknown": True}, DdlKinds([]), Names(), PLACE)
    assert unknown.skipped


def test_a_pattern_that_means_nothing() -> None:
    with pytest.raises(ConfigError, match="'tabel' is no kind of DDL"):
        DdlKinds(["*", "!tabel"])


# Where and how it runs -----------------------------------------------------------------------


def test_names_are_read_as_at_the_source(captured: Captured, target: Database) -> None:
    replayed(
        captured,
        target,
        [
            'CREATE SCHEMA "My App"; CREATE SCHEMA postgres',
            'SET search_path = "My App", public; CREATE TABLE here (id int PRIMARY KEY)',
            "RESET search_path; CREATE TABLE users (id int PRIMARY KEY)",
            "SET search_path = ''; CREATE TABLE public.there (note text DEFAULT '100 %s')",
        ],
    )
    assert schema_of(target) == schema_of(captured.database)


def test_a_schema_that_the_target_lacks_is_noticed(captured: Captured, target: Database) -> None:
    script: Script = ["CREATE SCHEMA app", "SET search_path = app, public; CREATE TABLE t (id int)"]
    with pytest.raises(TargetError, match="did not do at the target") as caught:
        replayed(captured, target, script, "*", "!schema")
    assert "app.t is not there" in caught.value.detail
    assert columns(target, "public.t") == []


def test_settings_are_put_back(captured: Captured, target: Database) -> None:
    run_script(captured.database, ["SET search_path = public; CREATE TABLE t (id int)"])
    captured.capture()
    (event,) = captured.events("ddl")
    assert event.payload is not None
    replay = plan_ddl(event.payload, DdlKinds(["*"]), Names(), PLACE)
    with connect(target.url, autocommit=False) as connection:
        for wanted in (None, TargetError):
            if wanted:
                with pytest.raises(wanted):
                    run_ddl(connection, replay, PLACE)
            else:
                run_ddl(connection, replay, PLACE)
            query = "SELECT current_setting('search_path'), current_setting('datestyle')"
            assert connection.execute(query).fetchone() == ('""', "ISO, YMD")
        connection.rollback()
    assert columns(target, "public.t") == []  # it was the caller's transaction all along


def test_a_new_enum_value_needs_a_commit(captured: Captured, target: Database) -> None:
    replica = replayed(
        captured,
        target,
        [
            "CREATE TYPE mood AS ENUM ('a')",
            "CREATE TABLE t (id int PRIMARY KEY, mood mood)",
            ["INSERT INTO t VALUES (1, 'a')", "ALTER TYPE mood ADD VALUE 'b'"],
            "INSERT INTO t VALUES (2, 'b')",
            "ALTER TYPE mood RENAME VALUE 'b' TO 'c'",
        ],
    )
    assert [replay.commit_after for replay in replica.replays] == [False, False, True, False]
    assert target.execute("SELECT id, mood::text FROM t ORDER BY 1") == [(1, "a"), (2, "c")]


def test_concurrently_inside_a_transaction(captured: Captured, target: Database) -> None:
    with captured.database.connect() as connection:
        run_script(
            captured.database,
            [
                "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
                "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (9)",
                "CREATE TABLE t (a int)",
                "INSERT INTO t VALUES (1), (1)",
            ],
        )
        with pytest.raises(Exception, match="could not create unique index"):
            connection.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (a)")
    replica = replayed(
        captured,
        target,
        ["ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY", "DROP INDEX CONCURRENTLY broken"],
    )
    assert [step.sql for replay in replica.replays[-2:] for step in replay.steps] == [
        "ALTER TABLE p DETACH PARTITION p1",
        "DROP INDEX IF EXISTS  broken",
    ]
    ((attached,),) = target.execute("SELECT relispartition FROM pg_class WHERE relname = 'p1'")
    assert not attached


def test_names_that_a_failed_index_has_taken(captured: Captured, target: Database) -> None:
    """What drops it must not meet the one that was made behind it."""
    run_script(captured.database, ["CREATE TABLE t (a int)", "INSERT INTO t VALUES (1), (1)"])
    with captured.database.connect() as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY ON t (a)")
    script: Script = ["CREATE INDEX CONCURRENTLY ON t (a)", "CREATE INDEX ON t ((a + 1), a)"]
    replayed(captured, target, [*script, "DROP INDEX t_a_idx"])
    query = "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1"
    assert target.execute(query) == [("t_a_idx1",), ("t_expr_a_idx",)]


# Refused and failed --------------------------------------------------------------------------


def both_ways(error: TargetError) -> bool:
    return "start the pipeline again" in error.hint and "pgtide skip --pipeline" in error.hint


def test_a_statement_that_the_target_refuses(captured: Captured, target: Database) -> None:
    run_script(captured.database, ["CREATE TABLE t (id int PRIMARY KEY)"])
    captured.capture()
    captured.execute("ALTER TABLE t ADD COLUMN a int DEFAULT 5")
    captured.capture()
    event = captured.events("ddl")[-1]
    with pytest.raises(TargetError) as caught:
        Replica(target).apply([event])
    error = caught.value
    assert error.message == f"ALTER TABLE at {event.position} fails at the target"
    assert 'relation "t" does not exist (42P01)' in error.detail
    assert "ALTER TABLE t ADD COLUMN a int DEFAULT 5" in error.detail
    assert f"pgtide skip --pipeline replica {event.position}" in error.hint
    assert both_ways(error)


def test_no_row_value_in_an_error(captured: Captured, target: Database) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    captured.execute("ALTER TABLE t ALTER a TYPE int USING a::int")
    captured.capture()
    first, second = captured.events("ddl")
    Replica(target).apply([first])
    target.execute("INSERT INTO t VALUES (1, 'secret words')")
    with pytest.raises(TargetError) as caught:
        Replica(target).apply([second])
    assert "InvalidTextRepresentation (22P02)" in caught.value.detail
    assert "secret" not in caught.value.detail


def test_a_lock_is_waited_for_again(captured: Captured, target: Database) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("ALTER TABLE t ADD COLUMN a int")
    captured.capture()
    first, second = captured.events("ddl")
    Replica(target).apply([first])
    target.execute(f"ALTER DATABASE {target.name} SET lock_timeout = '100ms'")
    with target.connect(autocommit=False) as other:
        other.execute("SELECT FROM t")
        with pytest.raises(TargetUnavailable, match="could not be replayed now"):
            Replica(target).apply([second])


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"tag": "ALTER TABLE", "unknown": True, "error": "XX000"}, "facts are not known (XX000)"),
        ({"tag": "", "unknown": True}, "facts are not known"),
        ({"tag": "ALTER TABLE", "statement": None, "unmatched": "?"}, "Its text is not known"),
        (
            {"tag": "CREATE SERVER", "statement": "CREATE SERVER s (p '***')", "redacted": True},
            "does not hold the secrets",
        ),
    ],
)
def test_nothing_is_guessed(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        plan_ddl(facts, DdlKinds(["*"]), Names(), PLACE)
    assert reason in caught.value.detail
    assert "pgtide skip --pipeline copy 16/B374D848:3" in caught.value.hint
    assert both_ways(caught.value)


def test_what_was_dropped_is_known_without_the_text(captured: Captured, target: Database) -> None:
    script: Script = [
        "CREATE TABLE t (id serial PRIMARY KEY, a text UNIQUE)",
        "CREATE VIEW v AS SELECT 1 AS a",
        "CREATE TABLE u (id int REFERENCES t)",
        "DROP VIEW v",
        "DROP TABLE t CASCADE",
        "DROP TABLE u",
    ]
    run_script(captured.database, script)
    captured.capture()
    events = captured.events("ddl")
    for event in events[3:]:
        assert event.payload is not None
        event.payload["statement"] = None
    Replica(target).apply(events[:4])
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        Replica(target).apply([events[4]])
    assert "more was dropped than it named" in caught.value.detail
    Replica(target).apply([events[5]])
    assert columns(target, "public.v") == columns(target, "public.u") == []
    assert columns(target, "public.t") == ["id", "a"]


def test_what_a_role_owned(captured: Captured, target: Database) -> None:
    captured.database.create_role("LOGIN", f"leaver_{target.name}")
    leaver = captured.database.roles[-1]
    replica = replayed(
        captured,
        target,
        [
            "CREATE TABLE t (id serial PRIMARY KEY)",
            f"ALTER TABLE t OWNER TO {leaver}",
            f"GRANT ALL ON SCHEMA public TO {leaver}",
            "CREATE FUNCTION f(int, text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            f"ALTER FUNCTION f OWNER TO {leaver}",
            f"CREATE SCHEMA AUTHORIZATION {leaver} CREATE TABLE mine (id int)",
            f"ALTER SCHEMA {leaver} OWNER TO CURRENT_USER",
            f"ALTER TABLE {leaver}.mine OWNER TO CURRENT_USER",
            f"DROP OWNED BY {leaver}",
            f"DROP OWNED BY {leaver}",
        ],
    )
    assert [step.sql for step in replica.replays[-2].steps] == [
        "DROP TABLE public.t",
        "DROP FUNCTION public.f(integer,pg_catalog.text)",
        "DROP SEQUENCE IF EXISTS public.t_id_seq",
    ]
    assert replica.replays[-1].skipped == "kind owner is not selected"
    assert schema_of(target) == schema_of(captured.database)
