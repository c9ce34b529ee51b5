"""Where a DDL command ran, read from PL/pgSQL's PG_CONTEXT (innermost frame first).

    PL/pgSQL function pgtide.on_ddl_command_end() line 5 at GET DIAGNOSTICS   ours
    SQL statement "create table t()"                                         what we want
    PL/pgSQL function inline_code_block line 1 at SQL statement

Texts inside quotes are not escaped and may span lines, so a frame can end at
several places: all of them are returned, and only one may make sense.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OWN_FRAME = re.compile(r"PL/pgSQL function (pgtide\.)?on_ddl_command_end\(\) line \d+ at .*")
STATEMENT = 'SQL statement "'
SQL_FUNCTION = re.compile(r'SQL function "(.*)" statement (\d+)$')
# A text ends at a quote before the end of the context or before a line that begins a frame.
TEXT_END = re.compile(
    r'"(?=\Z|\n(?:PL/|SQL (?:statement|function|expression) "|extension script file "))'
)


@dataclass(frozen=True, slots=True)
class TopLevel:
    """A statement of the query string itself."""


@dataclass(frozen=True, slots=True)
class Nested:
    """Run by a function or DO block through one of these texts: one for each way to read it."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InSqlFunction:
    """The ``number``-th statement, from 1, of a function in language SQL, which shows no text."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Frames that are not what an English-speaking server writes."""


def read_context(context: str) -> TopLevel | Nested | InSqlFunction | Unreadable:
    """What called the command's event trigger."""
    own, _, rest = context.partition("\n")
    if not OWN_FRAME.fullmatch(own):
        return Unreadable()
    if not rest:
        return TopLevel()
    if rest.startswith(STATEMENT):
        begin = len(STATEMENT)
        texts = tuple(rest[begin : end.start()] for end in TEXT_END.finditer(rest, begin))
        return Nested(texts) if texts else Unreadable()
    if function := SQL_FUNCTION.match(rest.partition("\n")[0]):
        return InSqlFunction(function[1], int(function[2]))
    return Unreadable()
