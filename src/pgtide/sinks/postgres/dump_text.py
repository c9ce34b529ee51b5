"""The output of pg_dump, cut into the statements of its entries.

    -- Name: orders_pkey; Type: CONSTRAINT; Schema: shop; Owner: -

heads each entry. Such a line counts only between two statements, where Postgres's own scanner
finds a comment: in the body of a function it is text. Lines that begin with a backslash there are
for psql (``\\restrict``), and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pglast.parser import ParseError, Token, scan

from pgtide.errors import SourceError

_HEAD = re.compile(r"-- Name: (?P<name>.*); Type: (?P<type>[^;]*); Schema: (?P<schema>.*); Owner:")
_RESTRICT = re.compile(r"(?:--[^\n]*\n|\s)*(?P<line>\\restrict (?P<key>\w+)[ \t]*\n)")
_SETTING = re.compile(r"SET (?P<name>\w+) = ", re.ASCII)
_COMMENTS = ("SQL_COMMENT", "C_COMMENT")


@dataclass(frozen=True, slots=True)
class Entry:
    """A statement and the object that it makes, by the names that pg_dump gives."""

    type: str  # as in TABLE or FK CONSTRAINT; empty for settings
    schema: str
    name: str
    statement: str  # without its semicolon

    @property
    def described(self) -> str:
        """Kind and name, as in ``table shop.orders``."""
        schema = "" if self.schema in ("", "-") else f"{self.schema}."
        return f"{self.type.lower()} {schema}{self.name}"

    @property
    def creates(self) -> bool:
        """Whether it makes the object, and does not only change it."""
        return self.statement.startswith("CREATE ")

    @property
    def setting(self) -> str | None:
        """The name of the setting, if it is one."""
        match = _SETTING.match(self.statement)
        return match["name"] if match else None


def entries(dump: str) -> list[Entry]:
    """The statements of a plain dump, in order."""
    text = _without_meta_commands(dump)
    try:
        tokens = scan(text)
    except ParseError as exc:
        raise SourceError(
            "the output of pg_dump cannot be understood",
            detail="It is not SQL as this release of pgtide knows it.",
            hint="Set PGTIDE_PG_DUMP to a pg_dump of the source's own release.",
        ) from exc
    found: list[Entry] = []
    head = ("", "", "")
    for comments, statement in _statements(tokens):
        for comment in comments:
            if match := _HEAD.match(text, comment.start, comment.end + 1):
                head = match["type"], match["schema"], match["name"]
        body = text[statement[0].start : statement[-1].end + 1]
        found.append(_entry(head, body))
    return found


def _entry(head: tuple[str, str, str], body: str) -> Entry:
    # Settings stand between entries, and belong to none.
    if _SETTING.match(body) or body.startswith("SELECT pg_catalog.set_config("):
        return Entry("", "", "", body)
    return Entry(*head, body)


def _without_meta_commands(dump: str) -> str:
    """The dump without the two commands for psql around it, if it is one that has them."""
    begin = _RESTRICT.match(dump)
    if begin is None:
        return dump
    body = dump[: begin.start("line")] + dump[begin.end("line") :]
    before, _, after = body.rpartition(f"\n\\unrestrict {begin['key']}")
    return before + after


def _statements(tokens: Sequence[Token]) -> Iterator[tuple[list[Token], list[Token]]]:
    """Comments before each statement, and its tokens.

    A semicolon in parentheses (CREATE RULE … DO (…; …)) and in a SQL function's body (BEGIN
    ATOMIC …; … END, with CASE … END inside) does not end it.
    """
    comments: list[Token] = []
    statement: list[Token] = []
    parentheses = blocks = 0
    for token in tokens:
        name = token.name
        if name in _COMMENTS:
            if not statement:
                comments.append(token)
            continue
        if name == "ASCII_59" and not parentheses and not blocks:
            if statement:
                yield comments, statement
            comments, statement = [], []
            continue
        parentheses += (name == "ASCII_40") - (name == "ASCII_41")
        if name == "ATOMIC" and statement and statement[-1].name == "BEGIN_P":
            blocks = 1
        elif blocks:
            blocks += (name == "CASE") - (name == "END_P")
        statement.append(token)
    if statement:
        yield comments, statement
