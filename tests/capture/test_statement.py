"""Which statement of a query string fired: by order, tag and what stands between."""

from __future__ import annotations

import pytest

from pgtide.capture.statement import Statement
from tests.capture.statement_cases import TWO_ADDS, Case, check, run

ADDS_AROUND_UPDATE = (
    "alter table t add a int; update t set a = 1;"
    " alter table t alter a set not null; alter table t alter a set default 5"
)

CASES = [
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
        'savepoint s; alter table t add a int; rollback work to "s"; alter table t add b int',
        "alter table t add b int",
        1,
        ("public.t",),
    ),
    Case(
        "rolled_back_to_the_outer_of_two",
        "ALTER TABLE",
        "alter table t add a int; savepoint s; alter table t add b int; savepoint S;"
        " alter table t add c int; release s; rollback to s; alter table t add d int",
        "alter table t add d int",
        2,
        ("public.t",),
    ),
    Case(
        "rolled_back_to_a_savepoint_of_another_string",
        "ALTER TABLE",
        "alter table t add a int; rollback to s; alter table t add b int",
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
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_of_the_statement(case: Case) -> None:
    check(case)


def test_source_is_the_query() -> None:
    found = run(CASES[0])
    assert isinstance(found, Statement)
    assert found.source == "query"
