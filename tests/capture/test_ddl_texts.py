"""DDL through the real triggers and a slot: every text, mark and layout comes out exactly."""

from __future__ import annotations

import json
import struct

import pytest

from pgtide.capture.ddl import DdlCommand, SigningKey, read_message
from pgtide.postgres import ddl_trigger
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.settings import SCHEMA_SQL
from pgtide.wal.messages import parse_message
from tests.capture.ddl_scripts import SCRIPTS, SETUP
from tests.fixtures.databases import Database


def prepare(database: Database) -> None:
    database.execute(SETUP.replace("nobody_here", database.name))
    database.roles.append(database.name)
    database.execute(SCHEMA_SQL + ddl_trigger.script())
    database.execute("create publication everything for all tables")
    database.execute(
        "select pg_create_logical_replication_slot(%s, 'pgoutput')", [f"slot_{database.name}"]
    )


def commands(database: Database) -> list[DdlCommand]:
    """Every command since the last call, through the slot."""
    with database.connect() as connection:
        key = ddl_trigger.read_key(connection)
    assert key is not None
    rows = database.execute(
        "select data from pg_logical_slot_get_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', 'everything', 'messages', 'true')",
        [f"slot_{database.name}"],
    )
    found: list[DdlCommand] = []
    xid = 0
    for (data,) in rows:
        if data[:1] == b"B":
            (xid,) = struct.unpack_from(">I", data, 17)
        elif data[:1] == b"M" and parse_message(data).prefix == "pgtide.ddl":
            command = read_message(parse_message(data).content, xid=xid, key=SigningKey.of(key))
            assert isinstance(command, DdlCommand), command
            found.append(command)
    return found


def check_scripts(database: Database) -> None:
    """Run the scripts one after the other: they build on each other's tables."""
    prepare(database)
    for script, texts in SCRIPTS:
        script = script.replace("nobody_here", database.name)
        database.execute(script)
        found = commands(database)
        assert [(c.statement, c.unmatched) for c in found] == [
            (text.replace("{}", script), "") for text in texts
        ], script
        assert not any(command.unknown for command in found)


def test_every_text_comes_out_exactly(database: Database) -> None:
    check_scripts(database)


@pytest.mark.slow
def test_every_text_comes_out_exactly_on_each_version(version_database: Database) -> None:
    check_scripts(version_database)


@pytest.mark.parametrize(("name", "behind"), [("a_audit", True), ('"A_audit"', False)])
def test_another_event_trigger_with_ddl_of_its_own_does_not_shift_the_count(
    database: Database, name: str, behind: bool
) -> None:
    """Its DDL comes behind the command, unless its name sorts before those of pgtide's."""
    prepare(database)
    audit = "create table if not exists public.audit ()"
    database.execute(
        "create function audit() returns event_trigger language plpgsql as"
        f" $$ begin {audit}; end $$;"
        f"create event trigger {name} on ddl_command_end when tag in ('ALTER TABLE')"
        " execute function audit()"
    )
    commands(database)
    database.execute("alter table t add b int; alter table t add c int")
    first, second = "alter table t add b int", "alter table t add c int"
    found = [c.statement for c in commands(database)]
    assert found == ([first, audit, second, audit] if behind else [audit, first, audit, second])


def test_marks_through_real_triggers(database: Database) -> None:
    prepare(database)
    database.execute(
        "insert into t values (1, '5'); create type mood as enum ('a');"
        "alter table pt attach partition leaf for values in (1);"
        "alter table pt detach partition leaf; alter table slow set logged;"
        "alter table slow set unlogged; alter table t add r float default random();"
        "alter table t alter a type int using a::int; alter table t add k int default 7;"
        "alter type mood rename value 'a' to 'b'; create table made as select 1 as x"
    )
    found = {c.statement: c.marks for c in commands(database)}
    assert {text: marks.reasons for text, marks in found.items() if marks.reasons} == {
        "alter table pt attach partition leaf for values in (1)": ("attach partition",),
        "alter table pt detach partition leaf": ("detach partition",),
        "alter table slow set logged": ("set logged",),
        "alter table t add r float default random()": ("rewrite: default",),
        "alter table t alter a type int using a::int": ("rewrite: type",),
        "alter type mood rename value 'a' to 'b'": ("rename enum value",),
    }
    assert [text for text, marks in found.items() if marks.rows_first] == [
        "create table made as select 1 as x"
    ]


def test_layouts_are_those_of_the_catalog(database: Database) -> None:
    prepare(database)
    database.execute(
        'create table "Ö" (a int, "B" text not null, g int generated always as (a * 2) stored,'
        ' primary key ("B", a)); alter table "Ö" drop a cascade;'
        "alter table pt add x text; create table part partition of pt for values in (9);"
        "alter table pt rename x to y; alter table t replica identity full"
    )
    latest = {layout.oid: layout for c in commands(database) for layout in c.layouts}
    with database.connect() as connection:
        catalog = read_layouts(connection)
    names = {"public.Ö", "public.pt", "public.part", "public.t"}
    assert {layout.name for layout in latest.values()} == names
    for oid, layout in latest.items():
        assert layout.same_layout(catalog[oid])


def test_defaults_are_redacted_like_the_statement(database: Database) -> None:
    prepare(database)
    database.execute("CREATE TABLE s (c text DEFAULT 'host=db password=hunter2', d int DEFAULT 7)")
    payload = json.dumps([command.payload() for command in commands(database)])
    assert "hunter2" not in payload
    assert "***" in payload
