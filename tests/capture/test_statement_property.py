"""Random strings of distinct statements: each gives its own text."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st
from pglast.parser import split

from pgtide.capture.query_string import pieces
from pgtide.capture.statement import Statement
from tests.capture.statement_cases import Case, run

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
