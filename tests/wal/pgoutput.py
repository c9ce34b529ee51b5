"""pgoutput messages made by hand, and a catalog to decode them with.

Layouts: PostgreSQL manual, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pgtide.log.event import UNCHANGED, Value
from pgtide.position import Lsn
from pgtide.wal.decoder import Chunk, LoggedMessage
from pgtide.wal.messages import LogicalMessage, Relation, TypeName
from pgtide.wal.relations import Slot

OWN_PREFIX = "pgtide.own"  # messages that the catalog below takes for pgtide's own


def begin(lsn: int, at_us: int = 0, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, at_us, xid)


def commit(lsn: int, end: int, at_us: int = 0) -> bytes:
    return b"C\0" + struct.pack(">QQq", lsn, end, at_us)


def relation(
    oid: int, schema: str, table: str, columns: Sequence[str], identity: str = "d"
) -> bytes:
    head = b"R" + struct.pack(">I", oid) + _text(schema) + _text(table) + identity.encode()
    body = b"".join(
        struct.pack(">B", index == 0) + _text(name) + struct.pack(">Ii", 25, -1)
        for index, name in enumerate(columns)
    )
    return head + struct.pack(">H", len(columns)) + body


def type_name(oid: int, schema: str, name: str) -> bytes:
    return b"Y" + struct.pack(">I", oid) + _text(schema) + _text(name)


def origin(name: str, lsn: int = 0) -> bytes:
    return b"O" + struct.pack(">Q", lsn) + _text(name)


def insert(oid: int, new: Sequence[Value]) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + tuple_data(new)


def update(
    oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, kind: str = "K"
) -> bytes:
    before = b"" if old is None else kind.encode() + tuple_data(old)
    return b"U" + struct.pack(">I", oid) + before + b"N" + tuple_data(new)


def delete(oid: int, old: Sequence[Value], kind: str = "K") -> bytes:
    return b"D" + struct.pack(">I", oid) + kind.encode() + tuple_data(old)


def truncate(oids: Sequence[int], *, cascade: bool = False, restart: bool = False) -> bytes:
    options = cascade | restart << 1
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), options, *oids)


def message(prefix: str, content: bytes, lsn: int, *, transactional: bool = True) -> bytes:
    return (
        b"M"
        + struct.pack(">BQ", transactional, lsn)
        + _text(prefix)
        + struct.pack(">I", len(content))
        + content
    )


def tuple_data(values: Sequence[Value]) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(_value(value) for value in values)


def chunk_of(messages: Sequence[bytes], *, gap: int = 0) -> Chunk:
    """Messages in one buffer, ``gap`` bytes apart as frame headers put them."""
    starts, ends, data = [], [], bytearray()
    for one in messages:
        data += b"\xee" * gap
        starts.append(len(data))
        data += one
        ends.append(len(data))
    return Chunk(
        np.frombuffer(bytes(data), np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        len(messages),
    )


@dataclass
class SmallCatalog:
    """Knows relations by what they say of themselves; tables called skip… are left out."""

    relations: list[tuple[str, Lsn]] = field(default_factory=list)
    types: list[TypeName] = field(default_factory=list)

    def relation(self, relation: Relation, lsn: Lsn) -> tuple[Slot, int] | None:
        self.relations.append((relation.table, lsn))
        if relation.table.startswith("skip"):
            return None
        return Slot(relation.schema, relation.table, relation.oid), len(relation.columns)

    def type_name(self, message: TypeName) -> None:
        self.types.append(message)

    def message(self, message: LogicalMessage, xid: int) -> LoggedMessage | None:
        if message.prefix == OWN_PREFIX:
            return None
        return LoggedMessage("message", message.content.decode(errors="replace"))


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _value(value: Value) -> bytes:
    if value is UNCHANGED:
        return b"u"
    if value is None:
        return b"n"
    raw = value.encode()
    return b"t" + struct.pack(">I", len(raw)) + raw
