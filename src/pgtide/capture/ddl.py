"""``pgtide.ddl`` messages: verified, understood, and made ready for the log.

A message is ``hex(HMAC-SHA256(key, body))``, a line feed and the body, a JSON
object (``postgres/ddl_trigger.sql`` writes it). Any role may emit logical
messages: one whose signature or transaction does not fit is ``Forged``. One
that is signed but says "unknown", or that this version cannot read, is a
command whose facts are unknown, never an error: the user's DDL did happen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

from pgtide.capture.ddl_marks import Marks, marks_of_command
from pgtide.capture.redact import redact
from pgtide.capture.statement import Fired, Statement, Unmatched, find_statement
from pgtide.shape import Column, Shape

BODY_VERSION = 1

PAD_BYTES = 64  # block size of SHA-256
XID_MASK = 0xFFFF_FFFF

# Scanning costs 70 to 300 bytes of memory for each; what people write is far shorter.
MAX_TEXT_CHARS = 1 << 20
SPOKEN = ("default", "missing", "domain_default")  # columns' facts that are text of the user's own

TABLE_KINDS = frozenset({"r", "p"})


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """An HMAC-SHA256 key as its two padded blocks; never printed."""

    inner: bytes
    outer: bytes

    def __post_init__(self) -> None:
        if len(self.inner) != PAD_BYTES or len(self.outer) != PAD_BYTES:
            raise ValueError(f"both pads of a signing key have {PAD_BYTES} bytes")

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """The key of a secret of at most 64 bytes, padded as RFC 2104 says."""
        block = secret.ljust(PAD_BYTES, b"\0")
        return cls(bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block))

    def sign(self, body: bytes) -> str:
        """The signature of a body, in hexadecimal."""
        return hashlib.sha256(self.outer + hashlib.sha256(self.inner + body).digest()).hexdigest()


@dataclass(frozen=True, slots=True)
class Forged:
    """A message that pgtide's triggers did not write for this transaction."""

    reason: str


@dataclass(frozen=True, slots=True)
class DdlCommand:
    """One DDL command of the source."""

    tag: str
    statement: str | None = None  # its exact text, secrets taken out; None: see ``unmatched``
    statement_source: str | None = None
    unmatched: str = ""
    query: str | None = None
    redacted: bool = False
    ordinal: int = 0
    statement_at: str = ""
    search_path: str = ""
    user: str = ""
    objects: tuple[Mapping[str, Any], ...] = ()
    dropped: tuple[Mapping[str, Any], ...] = ()
    rewrites: tuple[Mapping[str, Any], ...] = ()
    identity_set: tuple[int, ...] = ()
    marks: Marks = field(default_factory=Marks)
    unknown: bool = False
    error: str = ""
    layouts: tuple[Shape, ...] = ()

    def names(self, kind: str) -> set[str]:
        """Unquoted names of the objects of a kind that were made, changed or dropped."""
        return {
            str(item.get("name") or item["identity"])
            for item in (*self.objects, *self.dropped)
            if str(item["type"]).startswith(kind)
        }

    def payload(self) -> dict[str, Any]:
        """The JSON of the log's ``payload`` column; every key is always there.

        tag               command tag, ``ALTER TABLE``
        statement         exact text of this one statement; null when it could not be told
        statement_source  where it was found: ``query`` (a statement of the string the client
                          sent), ``context`` (run by a function or DO block), ``function``
                          (a function in language SQL)
        unmatched         why ``statement`` is null, else ``""``
        query             the string the client sent; null when ``statement`` is known
        redacted          whether secrets in ``statement`` or ``query`` were replaced by ``***``
        ordinal           place of the command in that string, from 1
        statement_at      when the string began to run, ISO 8601
        search_path       setting under which names without schema are to be read
        user              role that ran it
        objects           objects made or changed, each with ``type, schema, identity, oid,
                          command_tag``; relations also ``kind, persistence,
                          replica_identity, primary_key, root, columns``
        dropped           objects dropped: ``type, schema, identity, oid, original, normal``
        rewrites          tables rewritten without row events: ``oid, schema, table, reasons``
        identity_set      oids of tables that pgtide gave REPLICA IDENTITY FULL
        marks             ``refresh`` and ``reasons``: rows changed without row events;
                          ``partition`` attached or detached; ``rows_first``: rows of this new
                          table precede the command; ``no_op``: nothing happened (IF NOT
                          EXISTS, IF EXISTS); ``complete``: false when there may be more
        unknown           true: the command happened, its facts are not known
        error             why, when ``unknown``
        """
        return {
            "tag": self.tag,
            "statement": self.statement,
            "statement_source": self.statement_source,
            "unmatched": self.unmatched,
            "query": self.query,
            "redacted": self.redacted,
            "ordinal": self.ordinal,
            "statement_at": self.statement_at,
            "search_path": self.search_path,
            "user": self.user,
            "objects": [dict(item) for item in self.objects],
            "dropped": [dict(item) for item in self.dropped],
            "rewrites": [dict(item) for item in self.rewrites],
            "identity_set": list(self.identity_set),
            "marks": self.marks.payload(),
            "unknown": self.unknown,
            "error": self.error,
        }


def read_message(content: bytes, *, xid: int, key: SigningKey) -> DdlCommand | Forged:
    """Verify and read a message; ``xid`` is the 32-bit id of the transaction that carries it."""
    signature, _, body = content.partition(b"\n")
    if not hmac.compare_digest(signature, key.sign(body).encode()):
        return Forged("the signature does not fit")
    try:
        fields = json.loads(body)
        written_by = int(fields["xid"])
    except (ValueError, KeyError, TypeError):
        return _unknown("", "the body is not what this version of pgtide reads")
    if written_by & XID_MASK != xid:
        return Forged("it was signed for another transaction")
    if fields.get("unknown") or fields.get("v") != BODY_VERSION:
        return _unknown(str(fields.get("tag", "")), str(fields.get("error", "newer format")))
    try:
        return _command(fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _unknown(str(fields.get("tag", "")), "a field is missing or of another type")


def _unknown(tag: str, error: str) -> DdlCommand:
    return DdlCommand(tag, marks=Marks(complete=False), unknown=True, error=error)


def _command(fields: Mapping[str, Any]) -> DdlCommand:
    tag = str(fields["tag"])
    objects = tuple(_without_secrets(item) for item in fields["objects"])
    dropped = tuple(fields["dropped"])
    rewrites = tuple(fields["rewrites"])
    found = _find(fields, objects, dropped)
    marks = found.marks if isinstance(found, Statement) else Marks(complete=False)
    return DdlCommand(
        tag=tag,
        **_texts(found, fields["query"]),
        ordinal=int(fields["ordinal"]),
        statement_at=str(fields["statement_at"]),
        search_path=fields["search_path"],
        user=fields["user"],
        objects=objects,
        dropped=dropped,
        rewrites=rewrites,
        identity_set=tuple(fields["identity_set"]),
        marks=marks_of_command(marks, tag, objects, dropped, rewrites),
        layouts=tuple(_layouts(objects)),
    )


def _find(
    fields: Mapping[str, Any],
    objects: Sequence[Mapping[str, Any]],
    dropped: Sequence[Mapping[str, Any]],
) -> Statement | Unmatched:
    if max(len(fields["query"] or ""), len(fields["context"])) > MAX_TEXT_CHARS:
        return Unmatched(f"the query string is longer than {MAX_TEXT_CHARS} characters")
    if fields.get("escapes") and "\\" in f"{fields['query']}{fields['context']}":
        return Unmatched("standard_conforming_strings was off, and it has backslashes")
    return find_statement(
        Fired(
            tag=str(fields["tag"]),
            query=fields["query"],
            context=fields["context"],
            ordinal=fields["top_ordinal"] or 0,
            objects=objects,
            dropped=dropped,
            search_path=fields["search_path"],
            functions=fields["functions"],
        )
    )


def _texts(found: Statement | Unmatched, query: str | None) -> dict[str, Any]:
    """The statement's own text, or the beginning of the string that holds it and why."""
    if isinstance(found, Statement):
        shown = redact(found.text)
        redacted = shown != found.text
        return {"statement": shown, "statement_source": found.source, "redacted": redacted}
    start = (query or "")[:MAX_TEXT_CHARS]
    shown = _redact_string(start)
    return {"query": shown or None, "unmatched": found.reason, "redacted": shown != start}


@lru_cache(maxsize=1)
def _redact_string(text: str) -> str:
    """As ``redact``: every command of a string brings the string along."""
    return redact(text)


def _without_secrets(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with the defaults of its columns redacted like the statement."""
    if "columns" not in item:
        return item
    columns = [
        {**column, **{name: redact(column[name]) for name in SPOKEN if column.get(name)}}
        for column in item["columns"]
    ]
    return {**item, "columns": columns}


def _layouts(objects: Sequence[Mapping[str, Any]]) -> list[Shape]:
    """Every table among the objects once, as it is after the command.

    Roots come before their partitions, whichever is older: a partition's rows have the layout of
    the root's shape before theirs.
    """
    layouts: dict[int, Shape] = {}
    for item in objects:
        if item.get("kind") in TABLE_KINDS and item["oid"] not in layouts:
            layouts[item["oid"]] = _layout(item)
    return sorted(layouts.values(), key=lambda layout: layout.root_oid != 0)


def _layout(item: Mapping[str, Any]) -> Shape:
    root = item["root"] or {"oid": 0, "schema": "", "table": ""}
    key = set(item["primary_key"])
    identity = {"d": key, "i": set(item["identity_key"]), "f": None, "n": set()}[
        item["replica_identity"]
    ]
    return Shape(
        oid=item["oid"],
        schema=item["schema"],
        table=item["name"],
        columns=tuple(
            Column(
                name=column["name"],
                type_oid=column["type_oid"],
                typmod=column["typmod"],
                type_name=column["type"],
                attnum=column["attnum"],
                nullable=column["nullable"],
                key=column["attnum"] in key,
                identity=identity is None or column["attnum"] in identity,
                generated=bool(column["generated"]),
                # Triggers that an older release installed do not send these.
                base_oid=column.get("base_oid", 0),
                base_typmod=column.get("base_typmod", -1),
                element_oid=column.get("element_oid", 0),
            )
            for column in item["columns"]
            if column["generated"] != "v"  # computed by whoever asks, never sent
        ),
        replica_identity=item["replica_identity"],
        root_oid=root["oid"],
        root_schema=root["schema"],
        root_table=root["table"],
    )
