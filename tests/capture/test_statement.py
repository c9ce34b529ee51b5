"""Which statement fired: every case gives what the server reports and the exact text, or None."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pglast.parser import split

from pgtide.capture.query_string import pieces
from pgtide.capture.statement import Fired, Statement, Unmatched, find_statement, identifiers

OWN = "PL/pgSQL function pgtide.on_ddl_command_end() line 5 at GET DIAGNOSTICS"
IN_DO = "PL/pgSQL function inline_code_block line 1 at SQL statement"


@dataclass(frozen=True)
class Case:
    name: str
    tag: str
    query: str | None
    expected: str | None  # the text; None: unmatched
    ordinal: int = 1
    objects: tuple[str, ...] = ()  # identities
    dropped: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()  # frames below our own
    search_path: str = '"$user", public'
    functions: tuple[tuple[str, str], ...] = field(default=())


def reported(identities: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"identity": identity, "schema": identifiers(identity)[0] if "." in identity else None}
        for identity in identities
    ]


def run(case: Case) -> Statement | Unmatched:
    return find_statement(
        Fired(
            tag=case.tag,
            query=case.query,
            context="\n".join((OWN, *case.stack)),
            ordinal=case.ordinal,
            objects=reported(case.objects),
            dropped=reported(case.dropped),
            search_path=case.search_path,
            functions=[{"name": name, "source": source} for name, source in case.functions],
        )
    )


TWO_ADDS = "alter table t add a int; alter table t add b int"
ADDS_AROUND_UPDATE = (
    "alter table t add a int; update t set a = 1;"
    " alter table t alter a set not null; alter table t alter a set default 5"
)

TOP_LEVEL = [
    Case("single", "CREATE TABLE", "create table t ()", "create table t ()", 1, ("public.t",)),
    Case("semicolon", "CREATE TABLE", "create table t();", "create table t()", 1, ("public.t",)),
    Case(
        "weird_whitespace",
        "CREATE TABLE",
        "\n\t create\ttable\n\n t(\n)\r\n ;\n;; ",
        "create\ttable\n\n t(\n)",
        1,
        ("public.t",),
    ),
    Case(
        "comments_around",
        "CREATE TABLE",
        "/* a; b */ -- c;\ncreate /* in */ table t() -- garbage; '\n",
        "create /* in */ table t()",
        1,
        ("public.t",),
    ),
    Case(
        "nested_comment",
        "CREATE TABLE",
        "/* a /* ; */ ; */ create table t()",
        "create table t()",
        1,
        ("public.t",),
    ),
    Case(
        "first_of_two",
        "CREATE TABLE",
        "create table a(); create table b()",
        "create table a()",
        1,
        ("public.a",),
    ),
    Case(
        "second_of_two",
        "CREATE TABLE",
        "create table a(); create table b()",
        "create table b()",
        2,
        ("public.b",),
    ),
    Case(
        "name_decides_even_if_ordinal_is_odd",
        "CREATE TABLE",
        "create table a(); create table b()",
        "create table b()",
        7,
        ("public.b",),
    ),
    Case(
        "order_decides_first", "ALTER TABLE", TWO_ADDS, "alter table t add a int", 1, ("public.t",)
    ),
    Case(
        "order_decides_second", "ALTER TABLE", TWO_ADDS, "alter table t add b int", 2, ("public.t",)
    ),
    Case("ordinal_unknown", "ALTER TABLE", TWO_ADDS, None, 0, ("public.t",)),
    Case("ordinal_beyond", "ALTER TABLE", TWO_ADDS, None, 3, ("public.t",)),
    Case(
        "same_statement_twice",
        "CREATE TABLE",
        "create table t(); drop table t; create table t();",
        "create table t()",
        3,
        ("public.t",),
    ),
    Case(
        "non_ascii",
        "ALTER TABLE",
        "comment on table t is 'ÄÖÜ 😀'; alter table \"größe\" add ä int;"
        " alter table \"größe\" add ö int; select '€'",
        'alter table "größe" add ö int',
        3,
        ("public.größe",),
    ),
    Case(
        "dollar_quotes",
        "CREATE TABLE",
        "create function f() returns void language sql as"
        " $b$ create table a(); $b$; create table a()",
        "create table a()",
        2,
        ("public.a",),
    ),
    Case(
        "dollar_quoted_function",
        "CREATE FUNCTION",
        "create table a(); create function f() returns"
        " int language sql as $$ select 1; $$; drop table a",
        "create function f() returns int language sql as $$ select 1; $$",
        2,
        ("public.f()",),
    ),
    Case(
        "atomic_body",
        "CREATE FUNCTION",
        "create function f() returns int begin atomic select case"
        " when true then 1 end; select 2; end; create table a()",
        "create function f() returns int begin atomic select case when true then 1 end;"
        " select 2; end",
        1,
        ("public.f()",),
    ),
    Case(
        "rule_with_semicolons",
        "CREATE RULE",
        "create rule r as on insert to t do (select 1; select 2); create table a()",
        "create rule r as on insert to t do (select 1; select 2)",
        1,
        ("r on public.t",),
    ),
    Case(
        "no_op_counts",
        "CREATE TABLE",
        "create table if not exists a(); create table b()",
        "create table if not exists a()",
        1,
    ),
    Case(
        "drop_no_op",
        "DROP TABLE",
        "drop table if exists a; drop table if exists b",
        "drop table if exists b",
        2,
    ),
    Case(
        "begin_commit",
        "ALTER TABLE",
        f"begin; {TWO_ADDS}; commit",
        "alter table t add b int",
        2,
        ("public.t",),
    ),
    Case(
        "count_goes_on_after_commit",
        "ALTER TABLE",
        f"{TWO_ADDS}; commit; alter table t add c int",
        "alter table t add c int",
        3,
        ("public.t",),
    ),
    Case(
        "after_rollback",
        "CREATE TABLE",
        "begin; create table a(); rollback; create table b()",
        "create table b()",
        1,
        ("public.b",),
    ),
    Case(
        "rolled_back_statement_sent_nothing",
        "ALTER TABLE",
        "begin; alter table t add a int; rollback; alter table t add b int",
        "alter table t add b int",
        1,
        ("public.t",),
    ),
    Case(
        "committed_before_rollback",
        "ALTER TABLE",
        "alter table t add a int; commit; alter table t add b int; rollback and chain;"
        " alter table t add c int; alter table t add d int",
        "alter table t add c int",
        2,
        ("public.t",),
    ),
    Case(
        "rolled_back_to_savepoint",
        "ALTER TABLE",
        "savepoint s; alter table t add a int; rollback to s; alter table t add b int",
        None,
        1,
        ("public.t",),
    ),
    Case(
        "set_between_is_harmless",
        "ALTER TABLE",
        "alter table t add a int; set work_mem = '1MB'; alter table t add b int",
        "alter table t add b int",
        2,
        ("public.t",),
    ),
    Case(
        "update_between",
        "ALTER TABLE",
        ADDS_AROUND_UPDATE,
        "alter table t alter a set not null",
        2,
        ("public.t",),
    ),
    Case(
        "update_does_not_shift_the_count",
        "ALTER TABLE",
        ADDS_AROUND_UPDATE,
        "alter table t alter a set default 5",
        3,
        ("public.t",),
    ),
    Case(
        "extension_script_counts",
        "ALTER TABLE",
        "create extension x; alter table t add a int; alter table t add b int",
        None,
        70,
        ("public.t",),
    ),
    Case(
        "role_commands_fire_nothing",
        "ALTER TABLE",
        "create role r; alter table t add a int; grant r to s; alter table t add b int",
        "alter table t add b int",
        2,
        ("public.t",),
    ),
    Case(
        "roles_are_no_grant",
        "GRANT",
        "grant r to s; grant select on t to r",
        "grant select on t to r",
        1,
    ),
    Case(
        "grants_by_order",
        "GRANT",
        "grant select on a to r; grant select on b to r",
        "grant select on b to r",
        2,
    ),
    Case(
        "revoke",
        "REVOKE",
        "grant select on a to r; revoke select on a from r",
        "revoke select on a from r",
        2,
    ),
    Case(
        "tag_decides",
        "CREATE TABLE AS",
        "create table a(); create table b as select 1",
        "create table b as select 1",
        2,
        ("public.b",),
    ),
    Case(
        "select_into",
        "SELECT INTO",
        "select 1; select 2 as x into n union select 3",
        "select 2 as x into n union select 3",
        1,
        ("public.n",),
    ),
    Case(
        "with_select_into",
        "SELECT INTO",
        "with q as (select 1) select * into n from q; select 1",
        "with q as (select 1) select * into n from q",
        1,
        ("public.n",),
    ),
    Case(
        "rename_table",
        "ALTER TABLE",
        "alter table a rename to b; alter table c rename to d",
        "alter table c rename to d",
        2,
        ("public.d",),
    ),
    Case(
        "rename_chain",
        "ALTER TABLE",
        "alter table a rename to b; alter table b rename to c",
        "alter table b rename to c",
        2,
        ("public.c",),
    ),
    Case(
        "rename_columns",
        "ALTER TABLE",
        "alter table t rename a to b; alter table t rename c to d",
        "alter table t rename c to d",
        0,
        ("public.t.d",),
    ),
    Case(
        "rename_view_column",
        "ALTER VIEW",
        "alter view v rename column a to b; alter view v rename to w",
        "alter view v rename column a to b",
        0,
        ("public.v.b",),
    ),
    Case(
        "rename_schema",
        "ALTER SCHEMA",
        "alter schema a rename to b; alter schema c rename to d",
        "alter schema c rename to d",
        0,
        ("d",),
    ),
    Case(
        "set_schema",
        "ALTER TABLE",
        "alter table a.t set schema b; alter table a.u set schema b",
        "alter table a.u set schema b",
        0,
        ("b.u",),
    ),
    Case(
        "schema_with_elements",
        "CREATE SCHEMA",
        "create schema s create table t(x int) create view v as select 1; create table t()",
        "create schema s create table t(x int) create view v as select 1",
        1,
        ("s", "s.t", "s.v"),
    ),
    Case(
        "table_beside_schema_element",
        "CREATE TABLE",
        "create schema s create table t(x int); create table t()",
        "create table t()",
        2,
        ("public.t",),
    ),
    Case(
        "quoted_mixed_case",
        "CREATE TABLE",
        'create table "Order"(); create table Order_()',
        'create table "Order"()',
        0,
        ('public."Order"',),
    ),
    Case(
        "folded_name",
        "CREATE TABLE",
        'create table "ORDER_"(); create table Order_()',
        "create table Order_()",
        0,
        ("public.order_",),
    ),
    Case(
        "quote_in_name",
        "CREATE TABLE",
        'create table "a""b.c"(); create table b()',
        'create table "a""b.c"()',
        0,
        ('public."a""b.c"',),
    ),
    Case(
        "name_cut_at_63_bytes",
        "CREATE TABLE",
        f"create table {'x' * 70}(); create table y()",
        f"create table {'x' * 70}()",
        0,
        ("public." + "x" * 63,),
    ),
    Case(
        "schema_decides",
        "CREATE TABLE",
        "create table a.t(); create table b.t()",
        "create table b.t()",
        0,
        ("b.t",),
    ),
    Case(
        "search_path_decides",
        "CREATE TABLE",
        "create table t(); create table b.t()",
        "create table b.t()",
        0,
        ("b.t",),
        search_path="a, public",
    ),
    Case(
        "search_path_bare",
        "CREATE TABLE",
        "create table t(); create table b.t()",
        "create table t()",
        0,
        ("a.t",),
        search_path="a, public",
    ),
    Case(
        "search_path_with_user_is_open",
        "CREATE TABLE",
        "create table t(); create table b.t()",
        None,
        0,
        ("b.t",),
    ),
    Case(
        "search_path_changes",
        "CREATE TABLE",
        "set search_path = a; create table t(); set search_path = b; create table t(x int)",
        "create table t(x int)",
        2,
        ("b.t",),
        search_path="b",
    ),
    Case(
        "database_qualified",
        "DROP TABLE",
        "drop table db.s.t; drop table db.s.u",
        "drop table db.s.u",
        0,
        dropped=("s.u",),
    ),
    Case(
        "drop_several",
        "DROP TABLE",
        "drop table a, s.b; drop table c",
        "drop table a, s.b",
        0,
        dropped=("s.b", "s.b_pkey"),
    ),
    Case(
        "drop_trigger",
        "DROP TRIGGER",
        "drop trigger x on a; drop trigger x on b",
        "drop trigger x on b",
        0,
        dropped=("x on public.b",),
    ),
    Case(
        "drop_function",
        "DROP FUNCTION",
        "drop function f(int); drop function s.f(text)",
        "drop function s.f(text)",
        2,
        dropped=("s.f(pg_catalog.text)",),
    ),
    Case(
        "indexes",
        "CREATE INDEX",
        "create index i on s.t(a); create index j on s.t(b)",
        "create index j on s.t(b)",
        0,
        ("s.j",),
    ),
    Case(
        "index_without_name_by_order",
        "CREATE INDEX",
        "create index on t(a); create index on t(b)",
        "create index on t(b)",
        2,
        ("public.t_b_idx",),
    ),
    Case(
        "triggers",
        "CREATE TRIGGER",
        "create trigger x before insert on a execute function f();"
        "create trigger x before insert on b execute function f()",
        "create trigger x before insert on b execute function f()",
        0,
        ("x on public.b",),
    ),
    Case(
        "comments_on",
        "COMMENT",
        "comment on table t is 'a;b'; comment on column t.c is 'c'; comment on role r is 'x'",
        "comment on column t.c is 'c'",
        2,
        ("public.t.c",),
    ),
    Case(
        "types",
        "CREATE TYPE",
        "create type a as enum ('x'); create type b as (c int);"
        " create type r as range (subtype = int)",
        "create type b as (c int)",
        0,
        ("public.b",),
    ),
    Case(
        "alter_type",
        "ALTER TYPE",
        "alter type a add value 'y'; alter type b add attribute d int",
        "alter type b add attribute d int",
        0,
        ("public.b",),
    ),
    Case(
        "parameter",
        "CREATE TABLE AS",
        "create table t as select $1::int as x",
        "create table t as select $1::int as x",
        1,
        ("public.t",),
    ),
    Case(
        "newer_syntax_alone",
        "CREATE TABLE",
        "create table t (a int) with super powers; -- x",
        "create table t (a int) with super powers",
        1,
        ("public.t",),
    ),
    Case(
        "newer_syntax_of_another_command",
        "ALTER TABLE",
        "create table t (a int) super powers",
        None,
        1,
        ("public.t",),
    ),
    Case(
        "newer_syntax_among_others",
        "CREATE TABLE",
        "create table a(); create table t () super",
        None,
        1,
        ("public.a",),
    ),
    Case("unterminated", "CREATE TABLE", "create table a(x text default 'y)", None),
    Case("no_query", "CREATE TABLE", None, None),
    Case("nothing_fits", "CREATE TABLE", "select make_table('a')", None, 1, ("public.a",)),
    Case(
        "too_deep_to_parse",
        "CREATE TABLE",
        "create table a(); commit; create view v as select 1" + "+1" * 200_000,
        None,
        1,
        ("public.a",),
    ),
    Case(
        "long_but_flat",
        "CREATE TABLE",
        "create table a("
        + ", ".join(f"c{n} numeric(10, 2) not null default 1" for n in range(1600))
        + ")",
        "create table a("
        + ", ".join(f"c{n} numeric(10, 2) not null default 1" for n in range(1600))
        + ")",
        1,
        ("public.a",),
    ),
]

DO = "do $$ begin create table t(); end $$"

NESTED = [
    Case(
        "do_block",
        "CREATE TABLE",
        DO,
        "create table t()",
        1,
        ("public.t",),
        stack=('SQL statement "create table t()"', IN_DO),
    ),
    Case(
        "function_calling_function",
        "CREATE TABLE",
        "select f()",
        "create table t()",
        1,
        ("public.t",),
        stack=(
            'SQL statement "create table t()"',
            "PL/pgSQL function g() line 3 at SQL statement",
            'SQL statement "SELECT g()"',
            "PL/pgSQL function f() line 1 at PERFORM",
        ),
    ),
    Case(
        "quotes_and_lines",
        "CREATE TABLE",
        "select f()",
        'create table "T" (\n  "a" text default \'"\',\n  "b"\n int)',
        1,
        ('public."T"',),
        stack=(
            'SQL statement "create table "T" (\n  "a" text default \'"\',\n  "b"\n int)"',
            IN_DO,
        ),
    ),
    Case(
        "text_that_looks_like_frames",
        "COMMENT",
        "select f()",
        f"comment on table t is '\"\n{IN_DO}\nSQL statement \"drop table t'",
        1,
        ("public.t",),
        stack=(
            f'SQL statement "comment on table t is \'"\n{IN_DO}\nSQL statement "drop table t\'"',
            IN_DO,
        ),
    ),
    Case(
        "execute_of_several",
        "CREATE TABLE",
        "select f()",
        "create table b()",
        2,
        ("public.b",),
        stack=(
            'SQL statement "create table a(); create table b(); "',
            "PL/pgSQL function f() line 1 at EXECUTE",
        ),
    ),
    Case(
        "execute_of_several_alike",
        "ALTER TABLE",
        "select f()",
        None,
        2,
        ("public.t",),
        stack=(f'SQL statement "{TWO_ADDS}"', "PL/pgSQL function f() line 1 at EXECUTE"),
    ),
    Case(
        "quote_hidden_in_comment",
        "ALTER TABLE",
        "select f()",
        None,
        1,
        ("public.t",),
        stack=(
            'SQL statement "alter table t add a int; -- "\nPL/x\n; alter table t add b int"',
            "PL/pgSQL function f() line 1 at EXECUTE",
        ),
    ),
    Case(
        "innermost_is_no_ddl",
        "CREATE TABLE",
        "create table t()",
        None,
        1,
        ("public.t",),
        stack=('SQL statement "SELECT c_function()"', IN_DO),
    ),
    Case(
        "not_taken_from_the_query",
        "CREATE TABLE",
        "create table t(); select f()",
        "create table t ()",
        2,
        ("public.t",),
        stack=('SQL statement "create table t ()"', IN_DO),
    ),
    Case(
        "spi_without_function_frame",
        "CREATE TABLE",
        "select c()",
        "create table t()",
        1,
        ("public.t",),
        stack=('SQL statement "create table t()"',),
    ),
    Case(
        "truncated_text",
        "CREATE TABLE",
        "select f()",
        None,
        1,
        ("public.t",),
        stack=('SQL statement "create table t(',),
    ),
    Case(
        "newer_syntax",
        "CREATE TABLE",
        "select f()",
        "create table t() super powers",
        1,
        ("public.t",),
        stack=('SQL statement "create table t() super powers"', IN_DO),
    ),
    Case(
        "sql_function",
        "CREATE TABLE",
        "select f()",
        "create table b()",
        2,
        ("public.b",),
        stack=('SQL function "f" statement 2',),
        functions=(("f", " create table a();\n create table b(); "),),
    ),
    Case(
        "sql_functions_of_one_name",
        "CREATE TABLE",
        "select f(1)",
        "create table b()",
        1,
        ("public.b",),
        stack=('SQL function "f" statement 1',),
        functions=(
            ("f", "create table a()"),
            ("f", "create table b()"),
            ("g", "create table b ()"),
        ),
    ),
    Case(
        "sql_function_unknown",
        "CREATE TABLE",
        "select f()",
        None,
        1,
        ("public.b",),
        stack=('SQL function "f" statement 2',),
    ),
    Case(
        "frame_of_another_kind",
        "CREATE TABLE",
        DO,
        None,
        1,
        ("public.t",),
        stack=("PL/pgSQL function f() line 1 at assignment",),
    ),
]


@pytest.mark.parametrize("case", [*TOP_LEVEL, *NESTED], ids=lambda case: case.name)
def test_text_of_the_statement(case: Case) -> None:
    found = run(case)
    if case.expected is None:
        assert isinstance(found, Unmatched)
        assert found.reason
    else:
        assert isinstance(found, Statement), found
        assert found.text == case.expected


def test_source_says_where_the_text_was_found() -> None:
    sources = {}
    for case in [*TOP_LEVEL, *NESTED]:
        found = run(case)
        if isinstance(found, Statement):
            sources[case.name] = found.source
    assert sources["single"] == "query"
    assert sources["do_block"] == "context"
    assert sources["sql_function"] == "function"


def test_call_stack_in_another_language_is_not_guessed_at() -> None:
    frames = "PL/pgSQL-Funktion pgtide.on_ddl_command_end() Zeile 5 bei GET DIAGNOSTICS"
    fired = Fired(tag="CREATE TABLE", query="create table t()", context=frames, ordinal=1)
    assert isinstance(find_statement(fired), Unmatched)


def test_own_frame_without_schema_when_the_session_has_it_on_its_path() -> None:
    frame = "PL/pgSQL function on_ddl_command_end() line 5 at GET DIAGNOSTICS"
    fired = Fired(tag="CREATE TABLE", query="create table t()", context=frame, ordinal=1)
    assert isinstance(find_statement(fired), Statement)


MARKS = [
    ("alter table p attach partition s.q for values in (1)", ("attach partition",), ("s", "q")),
    ("alter table p attach partition q default", ("attach partition",), (None, "q")),
    ("alter table p detach partition q", ("detach partition",), (None, "q")),
    ("alter table p detach partition q concurrently", ("detach partition",), (None, "q")),
    ("alter table p detach partition q finalize", ("detach partition",), (None, "q")),
    ("alter table t add x int, set logged", ("set logged",), None),
    ("alter table t set unlogged", (), None),
    ("alter table t add x int default 5", (), None),
    ("alter type e rename value 'a' to 'b'", ("rename enum value",), None),
    ("alter type e add value 'c'", (), None),
    ("alter type c add attribute d int", ("alter composite type",), None),
]


@pytest.mark.parametrize(("text", "reasons", "partition"), MARKS, ids=[m[0] for m in MARKS])
def test_marks(text: str, reasons: tuple[str, ...], partition: object) -> None:
    tag = " ".join(text.upper().split()[:2])
    found = find_statement(Fired(tag=tag, query=text, context=OWN, ordinal=1))
    assert isinstance(found, Statement)
    assert found.marks.reasons == reasons
    assert found.marks.partition == partition
    assert found.marks.complete


def test_marks_are_incomplete_when_the_parser_did_not_understand() -> None:
    fired = Fired(tag="ALTER TABLE", query="alter table t do wonders", context=OWN, ordinal=1)
    found = find_statement(fired)
    assert isinstance(found, Statement)
    assert not found.marks.complete


# Random strings of distinct statements -------------------------------------------------------

names = st.one_of(
    st.text(string.ascii_lowercase, min_size=1, max_size=8).map(lambda text: f"n_{text}"),
    st.text("aBÄö€ ;'\"-/*$.(", min_size=1, max_size=8).map(
        lambda text: '"x' + text.replace('"', '""') + '"'
    ),
)
gaps = st.sampled_from(["", " ", "\n", " -- it's; a comment\n", "/* ; /* ü */ ' */", "\t"])

Made = tuple[str, str, tuple[str, ...], tuple[str, ...]]  # text, tag, objects, dropped


def made(name: str, number: int, kind: str) -> Made:
    full = f"public.{name}"
    match kind:
        case "create":
            return f"create table {name} (c{number} int)", "CREATE TABLE", (full,), ()
        case "add":
            return f"ALTER TABLE {name} ADD c{number} text", "ALTER TABLE", (full,), ()
        case "rename":
            column = f"alter table {name} rename x to c{number}"
            return column, "ALTER TABLE", (f"{full}.c{number}",), ()
        case "comment":
            text = f"comment on table {name} is 'é;{number}'"
            return text, "COMMENT", (full,), ()
        case "view":
            return f"create view {name} as select ';', {number}", "CREATE VIEW", (full,), ()
        case "noop":
            return f"create table if not exists {name} (x{number} int)", "CREATE TABLE", (), ()
        case "drop":
            return f"drop table {name} /*{number}*/ cascade", "DROP TABLE", (), (full,)
        case "index":
            return f"create index on {name} (c{number})", "CREATE INDEX", (f"public.i{number}",), ()
        case "grant":
            return f"grant select (c{number}) on {name} to r", "GRANT", (), ()
    body = f"create function {name}() returns int language sql as $é$ select {number}; $é$"
    return body, "CREATE FUNCTION", (f"{full}()",), ()


KINDS = ["create", "add", "rename", "comment", "view", "noop", "drop", "index", "grant", "function"]
statements = st.lists(st.tuples(names, st.sampled_from(KINDS)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(chosen=statements, data=st.data())
def test_each_of_many_statements_gives_its_own_text(
    chosen: list[tuple[str, str]], data: st.DataObject
) -> None:
    commands = [made(name, number, kind) for number, (name, kind) in enumerate(chosen)]
    query = "".join(
        data.draw(gaps) + command[0] + data.draw(gaps) + ";" + data.draw(gaps)
        for command in commands
    )
    for ordinal, (text, tag, objects, dropped) in enumerate(commands, start=1):
        found = run(Case("random", tag, query, text, ordinal, objects, dropped))
        assert isinstance(found, Statement), found
        assert found.text == text


@settings(max_examples=100, deadline=None)
@given(chosen=statements, data=st.data())
def test_cuts_where_the_parser_cuts(chosen: list[tuple[str, str]], data: st.DataObject) -> None:
    commands = [made(name, number, kind)[0] for number, (name, kind) in enumerate(chosen)]
    query = (data.draw(gaps) + ";" + data.draw(gaps)).join(commands)
    found = pieces(query)
    assert found is not None
    assert [piece.text for piece in found] == commands
    assert len(split(query)) == len(commands)
