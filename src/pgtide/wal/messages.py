"""The messages that are rare: parsed one by one into frozen dataclasses.

Begin, Commit, Insert, Update and Delete never come here, ``kernel`` decodes
them. Every parser checks lengths and names its message in the error.
Layouts: PostgreSQL manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pgtide.errors import InvalidText, ProtocolError
from pgtide.position import Lsn

EPOCH_US = 946_684_800_000_000  # 2000-01-01, where the protocol's clock begins, in Unix time
LAST_LSN = (1 << 63) - 1  # positions are signed in the log; no WAL gets that far


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a Relation message."""

    name: str
    type_oid: int
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """``R``: what a table looks like from here on."""

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """``Y``: the name of a type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """``T``: the relations emptied by one TRUNCATE."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """``M``: pg_logical_emit_message()."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


class _Cursor:
    """Reads a message from left to right; running out of bytes is a ProtocolError."""

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        self._data = data
        self._at = 1  # behind the type byte

    def unpack(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(layout)
        if self._at + size > len(self._data):
            raise self.error("ends too early")
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += size
        return values

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.error("has an unterminated string")
        raw, self._at = self._data[self._at : end], end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise InvalidText(f"{self._name} message holds a name that is not UTF-8") from None

    def rest(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise self.error("ends too early")
        raw, self._at = self._data[self._at : self._at + size], self._at + size
        return raw

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self.error("has trailing bytes")

    def error(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"malformed {self._name} message",
            detail=f"The message of {len(self._data)} bytes {what}.",
        )


def parse_relation(data: bytes) -> Relation:
    """Parse an ``R`` message."""
    cursor = _Cursor("Relation", data)
    (oid,) = cursor.unpack(">I")
    schema = cursor.text() or "pg_catalog"
    table = cursor.text()
    identity, count = cursor.unpack(">BH")
    columns = []
    for _ in range(count):
        (flags,) = cursor.unpack(">B")
        name = cursor.text()
        type_oid, typmod = cursor.unpack(">Ii")
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    cursor.finish()
    if oid == 0:
        raise cursor.error("names no relation")
    return Relation(oid, schema, table, chr(identity), tuple(columns))


def parse_origin(data: bytes) -> str:
    """Parse an ``O`` message: the name of the server where a transaction came from."""
    cursor = _Cursor("Origin", data)
    cursor.unpack(">Q")
    name = cursor.text()
    cursor.finish()
    return name


def parse_type(data: bytes) -> TypeName:
    """Parse a ``Y`` message."""
    cursor = _Cursor("Type", data)
    (oid,) = cursor.unpack(">I")
    message = TypeName(oid, cursor.text() or "pg_catalog", cursor.text())
    cursor.finish()
    return message


def parse_truncate(data: bytes) -> Truncate:
    """Parse a ``T`` message."""
    cursor = _Cursor("Truncate", data)
    count, options = cursor.unpack(">IB")
    if count * 4 > len(data):
        raise cursor.error("names more relations than it holds")
    oids = cursor.unpack(f">{count}I")
    cursor.finish()
    return Truncate(oids, bool(options & 1), bool(options & 2))


def parse_message(data: bytes) -> LogicalMessage:
    """Parse an ``M`` message."""
    cursor = _Cursor("Message", data)
    flags, lsn = cursor.unpack(">BQ")
    prefix = cursor.text()
    (size,) = cursor.unpack(">I")
    content = cursor.rest(size)
    cursor.finish()
    if lsn > LAST_LSN:
        raise cursor.error("names an impossible position")
    return LogicalMessage(bool(flags & 1), Lsn(lsn), prefix, content)
