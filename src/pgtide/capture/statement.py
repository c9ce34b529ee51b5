"""The exact text of the one statement that fired a DDL event.

An event trigger sees the whole query string, not its own statement. Inside
PL/pgSQL the call stack shows the text; at top level the string is split with
Postgres's own parser, and a statement remains a candidate only while its
command tag, the names it writes and its place in the string agree with what
the server reported. One text left: that is it. Otherwise the result says why
there is none. Nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pgtide.capture.ddl_context import InSqlFunction, Nested, TopLevel, read_context
from pgtide.capture.ddl_marks import Marks, marks_of_statement
from pgtide.capture.ddl_tags import tag_of
from pgtide.capture.ddl_targets import Target, targets_of
from pgtide.capture.query_string import CACHED_STRINGS, Kind, Piece, pieces
from pgtide.postgres.names import listed_names

# Commands of their scripts fire events too, and not all of them bear the mark of an extension.
RUN_SCRIPTS = frozenset({"CREATE EXTENSION", "ALTER EXTENSION"})

IDENTIFIER = re.compile(r'"((?:[^"]|"")*)"|[^\s"().,\[\]]+')


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement's text, without semicolon and surrounding comments."""

    text: str
    source: str  # "query" top level, "context" inside a function, "function" a SQL function
    marks: Marks = field(default_factory=Marks)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Why there is no text that is certainly the statement's."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fired:
    """What the event trigger reported of a command, as far as it tells statements apart."""

    tag: str
    query: str | None
    context: str
    ordinal: int = 0  # place among the string's own commands, from 1; 0 when not known
    objects: Sequence[Mapping[str, Any]] = ()
    dropped: Sequence[Mapping[str, Any]] = ()
    search_path: str = ""
    functions: Sequence[Mapping[str, Any]] = ()  # name and source of SQL functions on the stack


def find_statement(fired: Fired) -> Statement | Unmatched:
    """The statement behind a command, or why it cannot be told."""
    match read_context(fired.context):
        case TopLevel():
            if fired.query is None:
                return Unmatched("the server reported no query string")
            return _match(fired, "query", [fired.query])
        case Nested(texts):
            return _match(fired, "context", texts)
        case InSqlFunction(name, number):
            bodies = [str(item["source"]) for item in fired.functions if item["name"] == name]
            return _match_body(fired, bodies, number)
    return Unmatched("the call stack is not in the form this version of pgtide reads")


def identifiers(identity: str) -> list[str]:
    """The names in an object identity as the server prints it, without their quotes."""
    return [
        match[1].replace('""', '"') if match[1] is not None else match[0]
        for match in IDENTIFIER.finditer(identity)
    ]


def _match_body(fired: Fired, bodies: Iterable[str], number: int) -> Statement | Unmatched:
    """Functions of one name may be several: their ``number``-th statements are the candidates."""
    texts: list[str] = []
    for body in bodies:
        found = pieces(body) or ()
        texts.extend(piece.text for piece in found[number - 1 : number])
    if not texts:
        return Unmatched("inside a function of language SQL whose text is not known")
    return _match(fired, "function", texts)


def _match(fired: Fired, source: str, readings: Sequence[str]) -> Statement | Unmatched:
    """The one candidate of all readings of the string that holds the statement."""
    candidates: dict[str, Piece] = {}
    for reading in readings:
        found = pieces(reading) or ()
        chosen: Sequence[Piece] = ()
        if all(piece.kind is not Kind.OPAQUE for piece in found):
            chosen = _choose(fired, reading, use_ordinal=source == "query")
        elif len(readings) == len(found) == 1 and fired.tag.split()[0] == found[0].word:
            chosen = found  # newer syntax than the parser's, but nothing else it could be
        candidates |= {piece.text: piece for piece in chosen}
    if not candidates:
        return Unmatched(f"no statement that the parser understands fits {fired.tag}")
    if len(candidates) > 1:
        return Unmatched(f"{len(candidates)} statements of the string fit {fired.tag} equally")
    (piece,) = candidates.values()
    return Statement(piece.text, source, marks_of_statement(piece.node))


def _choose(fired: Fired, reading: str, *, use_ordinal: bool) -> list[Piece]:
    """The pieces that may be the statement; the order decides only where names do not."""
    reported = _reported(fired)
    path = listed_names(fired.search_path)
    fitting = [
        place
        for place in _places(reading)
        if place.tag == fired.tag and _fits(place.targets, reported, path)
    ]
    if use_ordinal and fired.ordinal and len({place.piece.text for place in fitting}) > 1:
        fitting = [place for place in fitting if place.low <= fired.ordinal <= place.high]
    return [place.piece for place in fitting]


@dataclass(frozen=True, slots=True)
class _Place:
    """A DDL statement and where in the count of commands it can stand."""

    piece: Piece
    tag: str
    targets: tuple[Target, ...]
    low: float
    high: float


@dataclass
class _Count:
    """The statements so far, and how many of them the server may have counted."""

    places: list[_Place] = field(default_factory=list)
    low: float = 0.0
    high: float = 0.0

    def now(self) -> tuple[int, float, float]:
        return len(self.places), self.low, self.high

    def back_to(self, moment: tuple[int, float, float]) -> None:
        """What ran since then was undone, its messages and the count alike."""
        kept, self.low, self.high = moment
        del self.places[kept:]

    def add(self, piece: Piece, tag: str) -> None:
        most = math.inf if tag in RUN_SCRIPTS else 1.0
        targets = targets_of(piece.node)
        self.places.append(_Place(piece, tag, targets, self.low + 1, self.high + most))
        self.low += tag != "REINDEX"  # fires events from Postgres 17 on
        self.high += most


@lru_cache(maxsize=CACHED_STRINGS)
def _places(reading: str) -> tuple[_Place, ...]:
    """The statements of a string that fire events, each with its possible ordinals."""
    count = _Count()
    begin = count.now()  # of the transaction
    savepoints: list[tuple[str, tuple[int, float, float]]] = []
    for piece in pieces(reading) or ():
        # The last of a name counts; without one it is older than the string.
        same = [n for n, (name, _) in enumerate(savepoints) if name == piece.savepoint]
        known = same[-1] if same else -1
        match piece.kind:
            case Kind.COMMIT:
                begin, savepoints = count.now(), []
            case Kind.ROLLBACK:
                count.back_to(begin)
                savepoints = []
            case Kind.SAVEPOINT:
                savepoints.append((piece.savepoint, count.now()))
            case Kind.RELEASE:
                del savepoints[max(known, 0) :]
            case Kind.ROLLBACK_TO if known >= 0:
                count.back_to(savepoints[known][1])
                del savepoints[known + 1 :]
            case Kind.ROLLBACK_TO:
                count.low, savepoints = begin[1], []
            case Kind.DDL if tag := tag_of(piece.node):
                count.add(piece, tag)
    return tuple(count.places)


Reported = list[tuple[set[str], str | None]]


def _reported(fired: Fired) -> Reported:
    """Names and schema of every object that the event itself listed."""
    listed = (item for item in fired.objects if item.get("listed", True))
    return [
        (set(identifiers(item["identity"])), item.get("schema"))
        for item in (*listed, *fired.dropped)
        if item.get("identity")
    ]


def _fits(targets: Sequence[Target], reported: Reported, path: Sequence[str]) -> bool:
    """Whether the server reported one of the statement's objects, or nothing to compare with."""
    if not targets or not reported:
        return True
    return any(
        names.issuperset(target.names) and (not target.bare or _on_path(schema, path))
        for target in targets
        for names, schema in reported
    )


def _on_path(schema: Any, path: Sequence[str]) -> bool:
    """Whether a name without schema can have meant an object of this one.

    ``$user`` stands for a schema named like any role that the session took on.
    """
    return schema in (None, "pg_catalog", *path) or not path or "$user" in path
