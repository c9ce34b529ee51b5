"""What is said of a statement besides its text, and strings that the parser does not understand."""

from __future__ import annotations

import pytest

from pgtide.capture.statement import Fired, Statement, find_statement
from tests.capture.statement_cases import OWN, Case, check

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_of_the_statement(case: Case) -> None:
    check(case)


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
