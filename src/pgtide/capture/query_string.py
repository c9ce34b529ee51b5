"""A query string cut into its statements, each parsed by Postgres's own grammar.

The scanner finds the boundaries (it needs no memory of what came before and
cannot run out of stack), the parser then reads only statements that may be
DDL, one at a time. Texts run from a statement's first to its last token:
comments around it are left off, comments inside it stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from pglast.parser import ParseError, Token, parse_sql, scan

# The parser recurses on the C stack without a limit of its own: a chain of 20 000 UNIONs
# ends the process. This depth needs under 2 MB of the 8 MB that a thread has, and nothing
# people write comes near it.
MAX_DEPTH = 3_000

# Strings whose statements are kept: every command of a string brings the string along.
CACHED_STRINGS = 4

COMMENTS = frozenset({"SQL_COMMENT", "C_COMMENT"})
DDL_WORDS = frozenset(
    {
        "ALTER",
        "COMMENT",
        "CREATE",
        "DROP",
        "GRANT",
        "IMPORT",
        "REFRESH",
        "REINDEX",
        "REVOKE",
        "SECURITY",
    }
)
QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "("})
COMMIT_WORDS = frozenset({"COMMIT", "END"})
ROLLBACK_WORDS = frozenset({"ROLLBACK", "ABORT"})
CHAINS = frozenset({"UNION", "INTERSECT", "EXCEPT"})


class Kind(Enum):
    """What running a statement means for the count of DDL commands of the string."""

    DDL = "ddl"  # parsed: ``node`` is there
    OPAQUE = "opaque"  # begins like DDL, but this parser cannot read it
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    ROLLBACK_TO = "rollback to"  # a savepoint
    OTHER = "other"


SAVEPOINT_WORDS = {"SAVEPOINT": Kind.SAVEPOINT, "RELEASE": Kind.RELEASE}


@dataclass(frozen=True, slots=True)
class Piece:
    """One statement of a query string."""

    text: str
    kind: Kind
    word: str  # its first keyword, in capitals
    node: Any = None  # the statement's tree, for Kind.DDL
    savepoint: str = ""  # the one that it makes, releases or goes back to


@lru_cache(maxsize=CACHED_STRINGS)
def pieces(query: str) -> tuple[Piece, ...] | None:
    """The statements of a query string; None when not even the scanner understands it."""
    try:
        tokens = [token for token in scan(query) if token.name not in COMMENTS]
    except ParseError:
        return None
    return tuple(_piece(query, run) for run in _runs(tokens))


def _runs(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Tokens between the semicolons that end statements.

    Not those inside parentheses (CREATE RULE … DO (…; …)) nor those of a SQL
    function's body (BEGIN ATOMIC …; … END, with CASE … END inside).
    """
    begin = parentheses = blocks = 0
    previous = ""
    for index, token in enumerate(tokens):
        name = token.name
        if name == "ASCII_40":
            parentheses += 1
        elif name == "ASCII_41":
            parentheses -= 1
        elif parentheses <= 0 and name == "ATOMIC" and previous == "BEGIN_P":
            blocks = 1
        elif blocks and name == "CASE":
            blocks += 1
        elif blocks and name == "END_P":
            blocks -= 1
        elif name == "ASCII_59" and parentheses <= 0 and not blocks:
            if index > begin:
                yield tokens[begin:index]
            begin, parentheses = index + 1, 0
        previous = name
    if begin < len(tokens):
        yield tokens[begin:]


def _piece(query: str, tokens: Sequence[Token]) -> Piece:
    text = query[tokens[0].start : tokens[-1].end + 1]
    word = query[tokens[0].start : tokens[0].end + 1].upper()
    names = {token.name for token in tokens}
    if word in COMMIT_WORDS or (
        word == "PREPARE" and tokens[1:] and tokens[1].name == "TRANSACTION"
    ):
        return Piece(text, Kind.COMMIT, word)
    if word in SAVEPOINT_WORDS or (word in ROLLBACK_WORDS and "TO" in names):
        kind = SAVEPOINT_WORDS.get(word, Kind.ROLLBACK_TO)
        return Piece(text, kind, word, savepoint=_name(query, tokens[-1]))
    if word in ROLLBACK_WORDS:
        return Piece(text, Kind.ROLLBACK, word)
    if word not in DDL_WORDS and not (word in QUERY_WORDS and "INTO" in names):
        return Piece(text, Kind.OTHER, word)
    node = _parse(text) if _depth(tokens) <= MAX_DEPTH else None
    if node is None:
        return Piece(text, Kind.OPAQUE, word)
    return Piece(text, Kind.DDL, word, node)


def _name(query: str, token: Token) -> str:
    """The name that a token writes, as the server reads it."""
    text = query[token.start : token.end + 1]
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def _parse(text: str) -> Any:
    """The tree of a text that is exactly one statement, otherwise None."""
    try:
        statements = parse_sql(text)
    except (ParseError, RecursionError):
        return None
    return statements[0].stmt if len(statements) == 1 else None


def _depth(tokens: Sequence[Token]) -> int:
    """An upper bound of how deep the tree can get, without building it.

    Inside one list item every level costs a token, so the bound is the tokens of
    all items that are open at once; a set operation also nests across commas.
    """
    open_items = [0]
    total = deepest = chains = 0
    for token in tokens:
        if token.name == "ASCII_41" and len(open_items) > 1:
            total -= open_items.pop()
        elif token.name == "ASCII_44":
            total -= open_items[-1]
            open_items[-1] = 0
        else:
            chains += token.name in CHAINS
            open_items[-1] += 1
            total += 1
            if token.name == "ASCII_40":
                open_items.append(0)
        deepest = max(deepest, total)
    return deepest + chains
