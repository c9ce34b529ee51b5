"""Tables that change while they are captured: every row has the shape that was true for it."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.capture.ddl import MAX_TEXT_CHARS
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database

GEARS = ("live", "bulk")


def story(captured: Captured) -> list[tuple[Any, ...]]:
    """Every event: DDL by its tag and statement, rows by table, values and attribute numbers.

    Not what is read again after DDL that changes rows.
    """
    told: list[tuple[Any, ...]] = []
    for event in captured.events():
        if event.op == "read":
            continue
        if event.op == "ddl":
            assert event.payload is not None
            told.append((event.payload["tag"], event.payload["statement"]))
        else:
            assert event.shape is not None
            attnums = tuple(column.attnum for column in event.shape.columns)
            told.append((event.op, event.table, dict(event.after or event.before or {}), attnums))
    return told


@pytest.mark.parametrize("gear", GEARS)
def test_columns_come_go_and_change_their_names(make_captured: MakeCaptured, gear: str) -> None:
    captured = make_captured()
    statements = [
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t RENAME COLUMN a TO b",
        "INSERT INTO t VALUES (2, 'y')",
        "ALTER TABLE t ADD COLUMN a text",
        "UPDATE t SET b = 'z' WHERE id = 2",
        "ALTER TABLE t DROP COLUMN b",
        "UPDATE t SET a = 'w' WHERE id = 1",
        "ALTER TABLE t ALTER COLUMN a TYPE int USING length(a)",
        "INSERT INTO t VALUES (3, 33)",
    ]
    for statement in statements:
        captured.execute(statement)
    captured.capture(gear)
    assert story(captured) == [
        ("CREATE TABLE", statements[0]),
        ("insert", "t", {"id": "1", "a": "x"}, (1, 2)),
        ("ALTER TABLE", statements[2]),
        ("insert", "t", {"id": "2", "b": "y"}, (1, 2)),
        ("ALTER TABLE", statements[4]),
        ("update", "t", {"id": "2", "b": "z", "a": None}, (1, 2, 3)),
        ("ALTER TABLE", statements[6]),
        ("update", "t", {"id": "1", "a": "w"}, (1, 3)),
        ("ALTER TABLE", statements[8]),
        ("insert", "t", {"id": "3", "a": "33"}, (1, 3)),
    ]
    types = [
        [column.type_name for column in event.shape.columns]
        for event in captured.events("insert", "update")
        if event.shape
    ]
    assert types[-2:] == [["integer", "text"], ["integer", "integer"]]
    *_, rewritten = captured.events("ddl")
    assert rewritten.payload is not None
    assert [rewrite["table"] for rewrite in rewritten.payload["rewrites"]] == ["t"]
    assert rewritten.payload["marks"]["refresh"]


def test_tables_and_schemas_change_their_names(captured: Captured) -> None:
    captured.run(
        """
        CREATE SCHEMA one;
        CREATE TABLE one.t (id int PRIMARY KEY);
        INSERT INTO one.t VALUES (1);
        ALTER TABLE one.t RENAME TO u;
        INSERT INTO one.u VALUES (2);
        ALTER SCHEMA one RENAME TO two;
        INSERT INTO two.u VALUES (3);
        ALTER TABLE two.u SET SCHEMA public;
        INSERT INTO public.u VALUES (4);
        """
    )
    captured.capture()
    events = captured.events("insert")
    assert [(e.schema, e.table, (e.after or {})["id"]) for e in events] == [
        ("one", "t", "1"),
        ("one", "u", "2"),
        ("two", "u", "3"),
        ("public", "u", "4"),
    ]
    assert len({e.shape.oid for e in events if e.shape}) == 1
    assert all(c.attnum == 1 for e in events if e.shape for c in e.shape.columns)


def test_dropped_and_made_again_under_the_same_name(captured: Captured) -> None:
    captured.run(
        """
        CREATE TABLE t (id int PRIMARY KEY, a text);
        INSERT INTO t VALUES (1, 'x');
        DROP TABLE t;
        CREATE TABLE t (a text PRIMARY KEY, id int);
        INSERT INTO t VALUES ('y', 2);
        """
    )
    captured.capture()
    first, second = captured.events("insert")
    assert (first.after, second.after) == ({"id": "1", "a": "x"}, {"a": "y", "id": "2"})
    assert first.shape is not None
    assert second.shape is not None
    assert first.shape.oid != second.shape.oid
    dropped = [e.payload["dropped"] for e in captured.events("ddl") if e.payload]
    assert [item["oid"] for item in dropped[1] if item["type"] == "table"] == [first.shape.oid]


def test_rows_of_a_table_created_from_a_query(captured: Captured) -> None:
    captured.execute("CREATE TABLE t AS SELECT n AS id, 'x' AS v FROM generate_series(1, 3) n")
    captured.execute("SELECT 4 AS id INTO u")
    captured.capture()
    assert [(e.op, e.table) for e in captured.events()] == [
        *[("insert", "t")] * 3,
        ("ddl", "t"),
        ("insert", "u"),
        ("ddl", "u"),
    ]
    marks = [e.payload["marks"] for e in captured.events("ddl") if e.payload]
    assert [mark["rows_first"] for mark in marks] == [True, True]
    assert all(e.shape and e.shape.columns[0].attnum == 1 for e in captured.events("insert"))


def test_statements_of_one_string_each_have_their_own_text(captured: Captured) -> None:
    captured.execute(
        "CREATE TABLE a (id int PRIMARY KEY); /* note */ CREATE TABLE b (id int PRIMARY KEY);"
        " CREATE TABLE IF NOT EXISTS a (other int); SELECT 1; DROP TABLE b -- end"
    )
    captured.execute("SET search_path = elsewhere, public; CREATE TABLE c (id int PRIMARY KEY)")
    captured.execute(
        "DO $$ BEGIN EXECUTE 'CREATE TABLE d (id int PRIMARY KEY)'; DROP TABLE c; END $$"
    )
    progress = captured.capture()
    assert [event[1] for event in story(captured)] == [
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS a (other int)",  # it did nothing, and it names no object
        "DROP TABLE b",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "CREATE TABLE d (id int PRIMARY KEY)",
        "DROP TABLE c",
    ]
    paths = [e.payload["search_path"] for e in captured.events("ddl") if e.payload]
    assert paths[4] == "elsewhere, public"
    objects = [e.payload["objects"] for e in captured.events("ddl") if e.payload]
    assert [len(found) > 0 for found in objects] == [True, True, False, False, True, True, False]
    # What did nothing is logged, because it was run, and says so.
    marks = [(e.table, e.payload["marks"]["no_op"]) for e in captured.events("ddl") if e.payload]
    tables = ["a", "b", None, "b", "c", "d", "c"]
    assert marks == [(table, table is None) for table in tables]
    assert progress.counters["heartbeats"] <= 1  # the record behind each command is none


def test_a_statement_in_too_long_a_string_is_not_looked_for(captured: Captured) -> None:
    """Its facts are there all the same, they do not come from the text."""
    captured.execute(f"/*{'x' * MAX_TEXT_CHARS}*/ CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (1)")
    captured.capture()
    command, row = captured.events()
    assert command.payload is not None
    assert (command.table, command.payload["statement"]) == ("t", None)
    assert "longer than" in command.payload["unmatched"]
    assert len(command.payload["query"]) == MAX_TEXT_CHARS
    assert row.shape is not None
    assert row.shape.columns[0].attnum == 1


def test_a_text_whose_backslashes_mean_something_else(captured: Captured) -> None:
    """Nobody reads it later as the session did; what the catalog says is right all the same."""
    captured.run(
        """SET standard_conforming_strings = off;
CREATE TABLE t (id int PRIMARY KEY, a text DEFAULT 'a\\\\b');
CREATE TABLE u (id int PRIMARY KEY);
"""
    )
    captured.capture()
    first, second = (event.payload or {} for event in captured.events("ddl"))
    assert first["statement"] is None
    assert "standard_conforming_strings was off" in first["unmatched"]
    assert first["objects"][0]["columns"][1]["default"] == "'a\\b'::text"
    assert second["statement"] == "CREATE TABLE u (id int PRIMARY KEY)"


def test_temporary_tables_and_extensions_are_left_out(captured: Captured) -> None:
    captured.run(
        """
        CREATE TEMP TABLE s (id int PRIMARY KEY);
        ALTER TABLE s ADD COLUMN v text;
        DROP TABLE s;
        CREATE EXTENSION vector;
        CREATE TABLE t (id int PRIMARY KEY, v public.vector(2));
        INSERT INTO t VALUES (1, '[1,2]');
        """
    )
    captured.capture()
    tags = [told[0] for told in story(captured)]
    assert tags == ["CREATE EXTENSION", "CREATE TABLE", "insert"]
    assert captured.events("insert")[0].after == {"id": "1", "v": "[1,2]"}


@pytest.mark.parametrize("gear", GEARS)
def test_commands_and_rows_mixed_in_one_transaction(make_captured: MakeCaptured, gear: str) -> None:
    captured = make_captured()
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured.database.connect() as connection, connection.transaction():
        for statement in (
            "INSERT INTO t VALUES (1, 'x')",
            "ALTER TABLE t RENAME COLUMN a TO b",
            "INSERT INTO t VALUES (2, 'y')",
            "ALTER TABLE t RENAME COLUMN b TO c",
            "INSERT INTO t VALUES (3, 'z')",
            "SAVEPOINT s",
            "ALTER TABLE t DROP COLUMN c",
            "INSERT INTO t VALUES (4)",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES (5, 'v')",
            "SAVEPOINT s",
            "ALTER TABLE t ADD COLUMN d int DEFAULT 7",
            "INSERT INTO t VALUES (6, 'u')",
            "RELEASE s",
            "CREATE TABLE other (id int PRIMARY KEY)",
            "INSERT INTO other VALUES (1)",
            "ALTER TABLE other RENAME TO another",
            "INSERT INTO another VALUES (2)",
            "DROP TABLE another",
        ):
            connection.execute(statement.encode())
    captured.capture(gear)
    captured.check_log()
    assert story(captured)[1:] == [
        ("insert", "t", {"id": "1", "a": "x"}, (1, 2)),
        ("ALTER TABLE", "ALTER TABLE t RENAME COLUMN a TO b"),
        ("insert", "t", {"id": "2", "b": "y"}, (1, 2)),
        ("ALTER TABLE", "ALTER TABLE t RENAME COLUMN b TO c"),
        ("insert", "t", {"id": "3", "c": "z"}, (1, 2)),
        ("insert", "t", {"id": "5", "c": "v"}, (1, 2)),
        ("ALTER TABLE", "ALTER TABLE t ADD COLUMN d int DEFAULT 7"),
        ("insert", "t", {"id": "6", "c": "u", "d": "7"}, (1, 2, 3)),
        ("CREATE TABLE", "CREATE TABLE other (id int PRIMARY KEY)"),
        ("insert", "other", {"id": "1"}, (1,)),
        ("ALTER TABLE", "ALTER TABLE other RENAME TO another"),
        ("insert", "another", {"id": "2"}, (1,)),
        ("DROP TABLE", "DROP TABLE another"),
    ]


def test_a_change_of_the_root_reaches_its_partitions(captured: Captured) -> None:
    captured.run(
        """
        CREATE TABLE root (id int, a text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
        CREATE TABLE twig PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
        CREATE TABLE deep PARTITION OF twig FOR VALUES FROM (10) TO (20);
        INSERT INTO root VALUES (1, 'x'), (11, 'x');
        ALTER TABLE root RENAME COLUMN a TO b;
        INSERT INTO root VALUES (2, 'y'), (12, 'y');
        ALTER TABLE root ADD COLUMN c int;
        INSERT INTO root VALUES (3, 'z', 1), (13, 'z', 1);
        ALTER TABLE root RENAME TO stem;
        INSERT INTO stem VALUES (4, 'w', 1), (14, 'w', 1);
        ALTER TABLE stem RENAME COLUMN b TO e;
        """
    )
    captured.capture()
    seen = [
        (e.table, e.shape.root_table, tuple(e.after or ()), [c.attnum for c in e.shape.columns])
        for e in captured.events("insert")
        if e.shape
    ]
    assert seen == [
        (table, root, names, attnums)
        for root, names, attnums in [
            ("root", ("id", "a"), [1, 2]),
            ("root", ("id", "b"), [1, 2]),
            ("root", ("id", "b", "c"), [1, 2, 3]),
            ("stem", ("id", "b", "c"), [1, 2, 3]),
        ]
        for table in ("leaf", "deep")
    ]


def test_a_change_of_a_type_names_the_tables_that_use_it(make_captured: MakeCaptured) -> None:
    captured = make_captured(tables=["*.*", "!public.private_*"])
    captured.run(
        """
        CREATE TYPE pair AS (x int, y int);
        CREATE TABLE private_t (id int PRIMARY KEY, p pair);
        ALTER TYPE pair ADD ATTRIBUTE v int;
        CREATE TABLE t (id int PRIMARY KEY, p pair[]);
        INSERT INTO t VALUES (1, ARRAY[(1, 2, 3)::pair]);
        ALTER TYPE pair DROP ATTRIBUTE y;
        INSERT INTO t VALUES (2, ARRAY[(1, 3)::pair]);
        """
    )
    captured.capture()
    told = [
        (e.table, e.payload["marks"]["reasons"], {o["identity"] for o in e.payload["objects"]})
        for e in captured.events("ddl")
        if e.payload and e.payload["tag"] == "ALTER TYPE"
    ]
    reasons = ["alter composite type"]
    assert told == [
        # No captured table, and still logged: one may use the type later.
        (None, reasons, {"public.pair", "public.private_t"}),
        ("t", reasons, {"public.pair", "public.private_t", "public.t"}),
    ]
    assert [e.after["p"] for e in captured.events("insert") if e.after] == [
        '{"(1,2,3)"}',
        '{"(1,3)"}',
    ]


def test_without_ddl_messages_shapes_follow_the_rows(
    make_captured: MakeCaptured, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    captured = make_captured(ddl=False)
    captured.execute("INSERT INTO t VALUES (1, 'x')")
    captured.execute("ALTER TABLE t RENAME COLUMN a TO b")
    captured.execute("INSERT INTO t VALUES (2, 'y')")
    captured.capture()
    first, second = captured.events()
    assert (first.after, second.after) == ({"id": "1", "a": "x"}, {"id": "2", "b": "y"})
    assert first.shape is not None
    assert second.shape is not None
    assert [c.attnum for c in first.shape.columns] == [1, 2]
    assert [c.attnum for c in second.shape.columns] == [1, 2]
    captured.execute("ALTER TABLE t RENAME COLUMN b TO c")
    captured.execute("INSERT INTO t VALUES (3, 'z')")
    captured.execute("ALTER TABLE t RENAME COLUMN c TO d")
    captured.capture()
    *_, third = captured.events()
    assert third.after == {"id": "3", "c": "z"}
    assert third.shape is not None
    # The catalog is ahead of this row: what it says of it is not claimed.
    assert [c.attnum for c in third.shape.columns] == [None, None]
    assert [c.key for c in third.shape.columns] == [True, False]


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        ("ADD COLUMN b int", ["id", "a", "b"]),
        ("DROP COLUMN a", ["id"]),
        ("RENAME TO t2", ["id", "a"]),
    ],
)
def test_a_table_that_changed_while_the_triggers_were_off(
    captured: Captured, caplog: pytest.LogCaptureFixture, change: str, sent: list[str]
) -> None:
    """No command is in the log; the row has the shape that was true for it, and it is counted."""
    captured.run(
        f"""
        CREATE TABLE t (id int PRIMARY KEY, a text, g int GENERATED ALWAYS AS (id) STORED);
        INSERT INTO t VALUES (1);
        ALTER EVENT TRIGGER _pgtide_ddl_command_end DISABLE;
        ALTER TABLE t {change};
        ALTER EVENT TRIGGER _pgtide_ddl_command_end ENABLE ALWAYS;
        """
    )
    table = "t2" if "t2" in change else "t"
    captured.execute(f"INSERT INTO {table} VALUES (2)")
    progress = captured.capture()
    assert [told[0] for told in story(captured)] == ["CREATE TABLE", "insert", "insert"]
    _, second = captured.events("insert")
    assert second.table == table
    assert second.shape is not None
    assert [column.name for column in second.shape.columns] == sent
    assert all(column.attnum for column in second.shape.columns)
    assert progress.counters["unseen_ddl"] == 1
    assert f"public.{table} changed unseen" in caplog.text


def test_a_table_renamed_out_of_the_patterns_says_so(make_captured: MakeCaptured) -> None:
    captured = make_captured(tables=["*.*", "!public.old_*"])
    captured.run(
        """
        CREATE TABLE t (id int PRIMARY KEY);
        ALTER TABLE t RENAME TO old_t;
        INSERT INTO old_t VALUES (1);
        ALTER TABLE old_t ADD COLUMN v text;
        ALTER TABLE old_t RENAME TO t;
        INSERT INTO t VALUES (2);
        """
    )
    progress = captured.capture()
    assert [told[1] for told in story(captured)] == [
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t RENAME TO old_t",
        "ALTER TABLE old_t RENAME TO t",
        "t",
    ]
    assert progress.counters["filtered_ddl"] == 1
