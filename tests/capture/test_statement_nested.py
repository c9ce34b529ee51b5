"""Which statement fired inside a DO block or a function: by the call stack."""

from __future__ import annotations

import pytest

from pgtide.capture.statement import Fired, Statement, Unmatched, find_statement
from tests.capture.statement_cases import TWO_ADDS, Case, check, run

IN_DO = "PL/pgSQL function inline_code_block line 1 at SQL statement"
DO = "do $$ begin create table t(); end $$"

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_of_the_statement(case: Case) -> None:
    check(case)


def test_source_says_where_the_text_was_found() -> None:
    sources = {}
    for case in CASES:
        found = run(case)
        if isinstance(found, Statement):
            sources[case.name] = found.source
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
