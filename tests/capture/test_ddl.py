"""DDL messages: signatures, payload, layouts, secrets; and every text through real triggers."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import struct
import time
import tracemalloc
from typing import Any

import pytest

from pgtide.capture.ddl import (
    MAX_TEXT_CHARS,
    DdlCommand,
    Forged,
    SigningKey,
    read_message,
)
from pgtide.capture.redact import redact
from pgtide.postgres import ddl_trigger
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.settings import SCHEMA_SQL
from pgtide.shape import Column
from pgtide.wal.messages import parse_message
from tests.fixtures.databases import Database

SECRET = bytes(range(64))
KEY = SigningKey.of(SECRET)
XID = 0xFFFF_FFFE
FRAME = "PL/pgSQL function pgtide.on_ddl_command_end() line 5 at GET DIAGNOSTICS"


def column(attnum: int, name: str, **facts: Any) -> dict[str, Any]:
    return {
        "attnum": attnum, "name": name, "type_oid": 23, "typmod": -1, "type": "integer",
        "nullable": True, "default": None, "generated": "", "identity": "", "missing": None,
    } | facts  # fmt: skip


TABLE: dict[str, Any] = {
    "type": "table",
    "schema": "app",
    "identity": 'app."T"',
    "name": "T",
    "oid": 16400,
    "command_tag": "CREATE TABLE",
    "listed": True,
    "kind": "r",
    "persistence": "p",
    "replica_identity": "d",
    "primary_key": [1],
    "identity_key": [],
    "root": None,
    "columns": [column(1, "id", nullable=False), column(3, "g", generated="s")],
}


def body(**changes: Any) -> dict[str, Any]:
    return {
        "v": 1, "xid": str((7 << 32) | XID), "pid": 1, "ordinal": 1, "top_ordinal": 1,
        "tag": "CREATE TABLE", "query": 'create table app."T" (id int primary key)',
        "context": FRAME, "statement_at": "2026-01-01T00:00:00+00:00", "search_path": "public",
        "user": "joe", "functions": [], "objects": [TABLE], "dropped": [], "rewrites": [],
        "identity_set": [],
    } | changes  # fmt: skip


def signed(fields: Any, key: SigningKey = KEY) -> bytes:
    text = json.dumps(fields).encode()
    return key.sign(text).encode() + b"\n" + text


def read(**changes: Any) -> DdlCommand:
    command = read_message(signed(body(**changes)), xid=XID, key=KEY)
    assert isinstance(command, DdlCommand)
    return command


def test_signature_is_hmac_sha256() -> None:
    assert KEY.sign(b"x") == hmac.new(SECRET, b"x", hashlib.sha256).hexdigest()


def test_key_is_never_printed() -> None:
    assert KEY.inner.hex()[:8] not in repr(KEY)
    assert repr(KEY.inner)[2:10] not in repr(KEY)


def test_pads_have_the_block_size() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        SigningKey(b"short", b"short")


FORGERIES = {
    "empty": b"",
    "no_signature": b"\n" + json.dumps(body()).encode(),
    "not_hexadecimal": "ü".encode() + b"\n{}",
    "other_key": signed(body(), SigningKey.of(b"other")),
    "changed_body": signed(body()).replace(b"joe", b"eve"),
    "older_transaction": signed(body(xid=str((7 << 32) | (XID - 1)))),
}


@pytest.mark.parametrize("content", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged(content: bytes) -> None:
    assert isinstance(read_message(content, xid=XID, key=KEY), Forged)


UNKNOWN = {
    "said_so": {"v": 1, "xid": str(XID), "unknown": True, "tag": "ALTER TABLE", "error": "XX000"},
    "newer_format": body(v=2),
    "field_missing": {"v": 1, "xid": str(XID), "tag": "ALTER TABLE"},
    "field_of_another_type": body(objects=None),
    "not_an_object": [1],
}


@pytest.mark.parametrize("fields", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_signed_but_unknown(fields: Any) -> None:
    command = read_message(signed(fields), xid=XID, key=KEY)
    assert isinstance(command, DdlCommand)
    assert command.unknown
    assert command.error
    assert not command.marks.complete
    assert command.payload().keys() == read().payload().keys()


def test_payload() -> None:
    command = read()
    payload = json.loads(json.dumps(command.payload()))
    assert payload["tag"] == "CREATE TABLE"
    assert payload["statement"] == 'create table app."T" (id int primary key)'
    assert payload["statement_source"] == "query"
    assert payload["query"] is None
    assert payload["objects"] == [TABLE]
    assert payload["marks"] == {
        "refresh": False, "reasons": [], "partition": None, "rows_first": False, "no_op": False,
        "complete": True,
    }  # fmt: skip
    assert not payload["unknown"]
    assert pickle.loads(pickle.dumps(command)) == command


def test_payload_of_an_unmatched_command_has_the_whole_string() -> None:
    payload = read(tag="ALTER TABLE", query="select f(), 'x'").payload()
    assert payload["statement"] is None
    assert payload["unmatched"]
    assert payload["query"] == "select f(), 'x'"
    assert not payload["marks"]["complete"]


@pytest.mark.parametrize("field", ["query", "context"])
def test_memory_is_bounded_for_a_string_of_any_length(field: str) -> None:
    text = f"create table t (c text default '{'x' * 2_000}'); " * 4_000
    content = signed(body(tag="CREATE TABLE", **{field: text}))
    tracemalloc.start()
    try:
        command = read_message(content, xid=XID, key=KEY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(command, DdlCommand)
    assert (command.statement, len(command.query or "") <= MAX_TEXT_CHARS) == (None, True)
    assert command.unmatched == f"the query string is longer than {MAX_TEXT_CHARS} characters"
    # The body, the text in it, and not a tree of it: that costs twenty times as much and more.
    assert peak < 5 * len(content)


def test_layouts() -> None:
    (layout,) = read(objects=[TABLE, TABLE | {"type": "table column"}]).layouts
    assert (layout.oid, layout.name, layout.replica_identity) == (16400, "app.T", "d")
    assert layout.columns == (
        Column("id", 23, -1, "integer", 1, nullable=False, key=True, identity=True),
        Column("g", 23, -1, "integer", 3, generated=True),
    )


@pytest.mark.parametrize(
    ("replica_identity", "expected"),
    [("d", [True, False]), ("f", [True, True]), ("i", [False, True]), ("n", [False, False])],
)
def test_layout_identity(replica_identity: str, expected: list[bool]) -> None:
    table = TABLE | {"replica_identity": replica_identity, "identity_key": [3]}
    (layout,) = read(objects=[table]).layouts
    assert [column.identity for column in layout.columns] == expected


def test_layout_of_a_partition_names_its_root() -> None:
    root = {"oid": 5, "schema": "s", "table": "r"}
    (layout,) = read(objects=[TABLE | {"root": root}]).layouts
    assert (layout.root_oid, layout.root_schema, layout.root_table) == (5, "s", "r")


def test_only_tables_have_layouts() -> None:
    index = {"type": "index", "schema": "app", "identity": "app.i", "oid": 9, "listed": True}
    assert read(objects=[index, TABLE | {"kind": "v"}]).layouts == ()


@pytest.mark.parametrize(
    ("bits", "persistence", "reasons"),
    [(2, "p", ["rewrite: default"]), (4, "p", ["rewrite: type"]), (1, "p", ["set logged"]),
     (1, "u", []), (8, "p", []), (6, "p", ["rewrite: default", "rewrite: type"])],
)  # fmt: skip
def test_rewrites_are_marked(bits: int, persistence: str, reasons: list[str]) -> None:
    rewrite = {"oid": 16400, "schema": "app", "table": "T", "reason": bits, "reasons": []}
    table = TABLE | {"persistence": persistence}
    marks = read(objects=[table], rewrites=[rewrite]).payload()["marks"]
    assert marks["reasons"] == reasons
    assert marks["refresh"] == bool(reasons)


# Secrets -------------------------------------------------------------------------------------

SECRETS = [
    "create role r login password 's3cret'",
    "alter user r with encrypted password E's3c\\'ret' valid until 'infinity'",
    "ALTER ROLE r PASSWORD /* now */ 's3cret'",
    "create user mapping for x server y options (user 'bob', password 's3cret')",
    "alter user mapping for x server y options (set password 's3c', add \"sslpassword\" 's3c')",
    "create server s foreign data wrapper f options (host 'h', aws_secret_access_key 's3cret')",
    "create subscription s connection 'host=h password=s3cret dbname=d' publication p",
    "alter subscription s connection $$postgresql://u:s3cret@h/d$$",
    "select dblink_connect('host=h user=u password=s3cret')",
    "select dblink_connect('postgresql://u:s3cret@h/d')",
    "select dblink_connect('postgresql://h/d?user=u&password=s3cret&x=1')",
    "do $x$ begin create user mapping for a server b options (password 's3cret'); end $x$",
    "do $x$ begin execute 'alter role r password ''s3cret'''; end $x$",
    "create user mapping for x server y options (password 's3cret', broken 'x",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_taken_out(text: str) -> None:
    hidden = redact(text)
    assert "s3c" not in hidden
    assert "***" in hidden
    assert hidden.split()[0] == text.split()[0]


HARMLESS = [
    "create table u (password text default 'x', token text check (token <> 'y'))",
    "comment on column u.password is 'the password: bcrypt'",
    "create function f() returns bool language sql as $$ select password = 'x' from u $$",
    "create function f() returns bool language sql as 'select password = crypt(1) from u'",
    "create view v as select 'http://example.com:80/a@b', 'a = b'",
    "create table t (a text default 'é''\\', b text default U&'\\0441') -- ü",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_everything_else_stays(text: str) -> None:
    assert redact(text) == text


def test_message_with_a_secret() -> None:
    query = "create user mapping for x server y options (password 's3cret'); create table t()"
    mapping = {"type": "user mapping", "schema": None, "identity": "x on server y", "oid": 1}
    command = read(tag="CREATE USER MAPPING", query=query, objects=[mapping])
    assert command.statement == "create user mapping for x server y options (password '***')"
    assert command.redacted
    assert "s3cret" not in json.dumps(command.payload())
    assert "s3cret" not in json.dumps(read(tag="ALTER TYPE", query=query).payload())


# Through the real triggers -------------------------------------------------------------------

SETUP = """
create schema app; create schema other; create role nobody_here nologin;
create table t (id int primary key, a text);
create table app.t (id int primary key); create table app.moves();
create table pt (id int) partition by list (id); create table leaf (id int);
create unlogged table slow (id int primary key);
create table fires (id int primary key);
create function by_trigger() returns trigger language plpgsql as
  $$ begin create table if not exists made_by_trigger(); return new; end $$;
create trigger f before insert on fires for each row execute function by_trigger();
create function inner_ddl(name text) returns int language plpgsql as
  $$ begin execute format('create table %I ("a""b" text default ''"'')', name); return 1; end $$;
create function outer_ddl() returns void language plpgsql as
  $$ declare x int; begin x := inner_ddl('deep'); perform inner_ddl('Deeper one'); end $$;
create function sql_ddl() returns void language sql as
  $$ create table by_sql_1(); alter table by_sql_1 add x int; alter table by_sql_1 add y int $$;
create procedure proc() language plpgsql as
  $$ begin create table proc_1(); commit; create table proc_2(); end $$;
"""

# Script and the texts that must come out, in order. "{}" stands for the whole script.
SCRIPTS: list[tuple[str, list[str]]] = [
    ("create table n1 (id serial primary key)", ["{}"]),
    (
        "create table n2(); create table n3();\n-- é ; comment\n",
        ["create table n2()", "create table n3()"],
    ),
    (
        "alter table t add b int; alter table t add c int; alter table t drop b",
        ["alter table t add b int", "alter table t add c int", "alter table t drop b"],
    ),
    (
        "alter table t add b int; update t set b = 1; alter table t alter b set default 1;"
        " insert into fires values (1); alter table t alter b set default 2",
        [
            "alter table t add b int",
            "alter table t alter b set default 1",
            "create table if not exists made_by_trigger()",
            "alter table t alter b set default 2",
        ],
    ),
    (
        "alter table t add d int; select outer_ddl(); alter table t add e int",
        [
            "alter table t add d int",
            'create table deep ("a""b" text default \'"\')',
            'create table "Deeper one" ("a""b" text default \'"\')',
            "alter table t add e int",
        ],
    ),
    (
        "select sql_ddl()",
        [
            "create table by_sql_1()",
            "alter table by_sql_1 add x int",
            "alter table by_sql_1 add y int",
        ],
    ),
    ("call proc()", ["create table proc_1()", "create table proc_2()"]),
    (
        "do $$ begin create table do_1(); execute 'create table do_2(); create"
        " table do_3();'; end $$",
        ["create table do_1()", "create table do_2()", "create table do_3()"],
    ),
    (
        "do $$ begin\n  begin create table lost(); raise exception 'x';\n"
        '  exception when others then create table kept (\n"q" int); end; end $$',
        ['create table kept (\n"q" int)'],
    ),
    (
        "set search_path = other; create table t(); set search_path = app; alter table t add x int",
        ["create table t()", "alter table t add x int"],
    ),
    (
        "create table if not exists t(); create table if not exists n4(); drop table if exists nix",
        [
            "create table if not exists t()",
            "create table if not exists n4()",
            "drop table if exists nix",
        ],
    ),
    ("create schema s1 create table st(x int primary key) create view sv as select 1", ["{}"]),
    (
        'alter table t rename to t2; alter table t2 rename a to "Ä"; alter table t2 rename to t',
        [
            "alter table t rename to t2",
            'alter table t2 rename a to "Ä"',
            "alter table t2 rename to t",
        ],
    ),
    (
        "alter schema app rename to app2; alter table app2.moves set schema other",
        ["alter schema app rename to app2", "alter table app2.moves set schema other"],
    ),
    (
        "create table x1(); drop table x1; create table x1(y int)",
        ["create table x1()", "drop table x1", "create table x1(y int)"],
    ),
    (
        "create table m1(); create table m2(); drop table m1, m2",
        ["create table m1()", "create table m2()", "drop table m1, m2"],
    ),
    (
        "begin; alter table t add f int; rollback; begin; alter table t add g int; commit",
        ["alter table t add g int"],
    ),
    (
        "begin; alter table t add h int; commit; alter table t add i int",
        ["alter table t add h int", "alter table t add i int"],
    ),
    (
        "create temp table tmp(); alter table tmp add x int; alter table t add x int",
        ["alter table t add x int"],
    ),
    (
        "alter table pt attach partition leaf for values in (1); alter table pt"
        " detach partition leaf",
        [
            "alter table pt attach partition leaf for values in (1)",
            "alter table pt detach partition leaf",
        ],
    ),
    ("alter table slow set logged", ["{}"]),
    (
        "alter table t add r float default random(); alter table t alter id type bigint",
        ["alter table t add r float default random()", "alter table t alter id type bigint"],
    ),
    (
        "select 1 as x into si; create table ctas as select 2 as y; create materialized view mv as"
        " select 3 as z; refresh materialized view mv",
        [
            "select 1 as x into si",
            "create table ctas as select 2 as y",
            "create materialized view mv as select 3 as z",
            "refresh materialized view mv",
        ],
    ),
    (
        "grant select on t to public; revoke select on t from public; grant"
        " nobody_here to current_user;"
        " comment on table t is 'a;b'; comment on column t.id is 'ü'",
        [
            "grant select on t to public",
            "revoke select on t from public",
            "comment on table t is 'a;b'",
            "comment on column t.id is 'ü'",
        ],
    ),
    (
        "create type en as enum ('a'); alter type en rename value 'a' to 'b';"
        " create domain dom as int;"
        " create type co as (a int); alter type co add attribute b int; drop type en, co",
        [
            "create type en as enum ('a')",
            "alter type en rename value 'a' to 'b'",
            "create domain dom as int",
            "create type co as (a int)",
            "alter type co add attribute b int",
            "drop type en, co",
        ],
    ),
    (
        "create index i1 on t(id); create index on t(c); alter index i1 rename"
        ' to "I 2"; drop index "I 2"',
        [
            "create index i1 on t(id)",
            "create index on t(c)",
            'alter index i1 rename to "I 2"',
            'drop index "I 2"',
        ],
    ),
    (
        "create view v as select 1 as a; create or replace view v as select 1 as a, 2 as b;"
        " alter view v rename to w; drop view w",
        [
            "create view v as select 1 as a",
            "create or replace view v as select 1 as a, 2 as b",
            "alter view v rename to w",
            "drop view w",
        ],
    ),
    (
        "create sequence q; alter sequence q restart; alter table q rename to q2; drop sequence q2",
        [
            "create sequence q",
            "alter sequence q restart",
            "alter table q rename to q2",
            "drop sequence q2",
        ],
    ),
    (
        "create policy p on t; alter policy p on t rename to p2; drop policy p2 on t;"
        " create rule r as on insert to t do also (select 1; select 2); drop rule r on t",
        [
            "create policy p on t",
            "alter policy p on t rename to p2",
            "drop policy p2 on t",
            "create rule r as on insert to t do also (select 1; select 2)",
            "drop rule r on t",
        ],
    ),
    (
        "create function fu(a int) returns int begin atomic select case when a > 0 then 1 end;"
        " select 2; end; alter function fu(int) stable; drop function fu(int)",
        [
            "create function fu(a int) returns int begin atomic select case when a > 0 then 1 end;"
            " select 2; end",
            "alter function fu(int) stable",
            "drop function fu(int)",
        ],
    ),
    (
        "alter table t add constraint k check (id > 0); alter table t rename constraint k to k2;"
        " comment on constraint k2 on t is 'x'; alter table t drop constraint k2",
        [
            "alter table t add constraint k check (id > 0)",
            "alter table t rename constraint k to k2",
            "comment on constraint k2 on t is 'x'",
            "alter table t drop constraint k2",
        ],
    ),
    (
        "create publication pub for table t; alter publication pub set (publish = 'insert');"
        " alter publication pub rename to pub2; drop publication pub2",
        [
            "create publication pub for table t",
            "alter publication pub set (publish = 'insert')",
            "alter publication pub rename to pub2",
            "drop publication pub2",
        ],
    ),
    (
        "create statistics st on id, c from t; alter statistics st rename to"
        " st2; drop statistics st2;"
        " alter default privileges grant select on tables to public",
        [
            "create statistics st on id, c from t",
            "alter statistics st rename to st2",
            "drop statistics st2",
            "alter default privileges grant select on tables to public",
        ],
    ),
    (
        "create aggregate ag(int) (sfunc = int4pl, stype = int); alter"
        " aggregate ag(int) rename to ag2;"
        " create operator === (leftarg = int, rightarg = int, function = int4eq);"
        ' drop operator === (int, int); create collation co2 from "C"; drop collation co2',
        [
            "create aggregate ag(int) (sfunc = int4pl, stype = int)",
            "alter aggregate ag(int) rename to ag2",
            "create operator === (leftarg = int, rightarg = int, function = int4eq)",
            "drop operator === (int, int)",
            'create collation co2 from "C"',
            "drop collation co2",
        ],
    ),
    (
        "create foreign data wrapper fdw; create server srv foreign data wrapper fdw;"
        " create user mapping for current_user server srv; create foreign table"
        " ft (a int) server srv;"
        " alter foreign table ft add b int; drop foreign table ft; drop server srv cascade",
        [
            "create foreign data wrapper fdw",
            "create server srv foreign data wrapper fdw",
            "create user mapping for current_user server srv",
            "create foreign table ft (a int) server srv",
            "alter foreign table ft add b int",
            "drop foreign table ft",
            "drop server srv cascade",
        ],
    ),
    (
        "set session_replication_role = replica; create table rep(); alter table t add z int",
        ["create table rep()", "alter table t add z int"],
    ),
    (
        f"create table {'long' * 20} (x int); alter table {'long' * 20} add y int",
        [f"create table {'long' * 20} (x int)", f"alter table {'long' * 20} add y int"],
    ),
]


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


def test_another_event_trigger_with_ddl_of_its_own_does_not_shift_the_count(
    database: Database,
) -> None:
    prepare(database)
    audit = "create table if not exists public.audit ()"
    database.execute(
        "create function audit() returns event_trigger language plpgsql as"
        f" $$ begin {audit}; end $$;"
        "create event trigger a_audit on ddl_command_end when tag in ('ALTER TABLE')"
        " execute function audit()"
    )
    commands(database)
    database.execute("alter table t add b int; alter table t add c int")
    first, second = "alter table t add b int", "alter table t add c int"
    assert [c.statement for c in commands(database)] == [audit, first, audit, second]


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


@pytest.mark.parametrize(
    "literal",
    [
        "&".join(f"k{n}={n}" for n in range(60)) + " it''s",
        "password " + "a=" * 5_000 + " ''",
        "a" * 300_000,
        "x://" * 20_000,
    ],
    ids=["query_string", "equal_signs", "one_long_word", "many_schemes"],
)
def test_no_literal_takes_longer_than_its_length(literal: str) -> None:
    began = time.perf_counter()
    redact(f"COMMENT ON TABLE t IS '{literal}'")
    assert time.perf_counter() - began < 2.0


def test_defaults_are_redacted_like_the_statement(database: Database) -> None:
    prepare(database)
    database.execute("CREATE TABLE s (c text DEFAULT 'host=db password=hunter2', d int DEFAULT 7)")
    payload = json.dumps([command.payload() for command in commands(database)])
    assert "hunter2" not in payload
    assert "***" in payload
