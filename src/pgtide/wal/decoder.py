"""Chunks of pgoutput messages in, Arrow record batches out. No sockets, no clock.

``Decoder.decode`` drives the compiled kernel over a chunk, handles the rare
messages it stops at, and hands back the rows with the facts that flushing
needs: which of them belong to committed transactions and where those end. What
a relation or a logical message *means* is asked of a ``Catalog``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgtide.errors import InvalidText, ProtocolError
from pgtide.log.schema import OPS
from pgtide.position import Lsn
from pgtide.wal import kernel as k
from pgtide.wal.memory import addresses
from pgtide.wal.messages import (
    LogicalMessage,
    Relation,
    Truncate,
    TypeName,
    parse_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from pgtide.wal.rows import NO_TIME, NotUtf8, Workspace

KEPT_BYTES = 16 << 20  # a workspace that grew beyond this for a huge message is given away
TRUNCATE_CODE = OPS.index("truncate")

_ERRORS = {
    k.TRUNCATED: "ends too early",
    k.UNKNOWN_RELATION: "names a relation that was not announced",
    k.COLUMN_COUNT: "has another number of columns than its relation",
    k.OUTSIDE_TRANSACTION: "stands outside a transaction",
    k.INSIDE_TRANSACTION: "stands inside another transaction",
    k.BAD_COMMIT: "does not close the transaction that was begun",
    k.BAD_KIND: "has a tuple of the wrong kind",
    k.TRAILING: "has trailing bytes",
    k.VALUE_KIND: "has a value of unknown kind",
    k.IMPOSSIBLE: "has an impossible position or time",
}
_NAMES = {
    "B": "Begin", "C": "Commit", "I": "Insert", "U": "Update", "D": "Delete", "R": "Relation",
    "Y": "Type", "T": "Truncate", "M": "Message", "O": "Origin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slot:
    """What the schema, table and shape columns of a row say."""

    schema: str | None
    table: str | None
    shape: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A logical message that becomes a row: ``message`` or ``ddl``."""

    op: str
    payload: str
    slot: Slot = Slot(None, None)
    again: tuple[Relation, ...] = ()  # announced before, and meaning something else from here on


class Catalog(Protocol):
    """Answers what relations and messages mean at their position."""

    def relation(self, relation: Relation, lsn: Lsn) -> tuple[Slot, int] | None:
        """Slot and number of columns of a relation, None if configuration leaves it out."""

    def type_name(self, message: TypeName) -> None:
        """Take note of a type's name."""

    def message(self, message: LogicalMessage, xid: int) -> LoggedMessage | None:
        """The row for a logical message, None for those that are pgtide's own."""


@dataclass(slots=True)
class Chunk:
    """Messages in one buffer: message i is ``data[starts[i]:ends[i]]``."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    count: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of a chunk, in order; the first ``complete`` belong to committed transactions."""

    rows: pa.RecordBatch
    complete: int
    closes_earlier: bool  # a transaction whose rows came before this chunk was committed
    open: bool  # a transaction is open at the end of the chunk
    end: Lsn  # up to here everything has been seen, transactions and messages


class Decoder:
    """Keeps the state of the stream between chunks."""

    def __init__(self, catalog: Catalog, *, resume: Lsn) -> None:
        self._catalog = catalog
        self._state = np.zeros(k.STATE_SIZE, np.int64)
        self.resume(resume)
        self._slots: list[Slot] = [Slot(None, None)]
        self._slot_ids: dict[Slot, int] = {self._slots[0]: 0}
        self._relations = k.Relations(
            np.zeros(64, np.int64), np.zeros(64, np.int32), np.zeros(64, np.int32)
        )
        self._known: dict[int, int] = {}
        self._deferred: dict[int, Relation] = {}
        self._workspace = Workspace(0, 0)

    @property
    def slots(self) -> list[Slot]:
        """Slots by number, as the ``slot`` column of decoded rows refers to them."""
        return self._slots

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open at the end of the last chunk."""
        return bool(self._state[k.IN_TRANSACTION])

    def resume(self, position: Lsn) -> None:
        """Begin again between transactions: what ends at or before ``position`` is dropped."""
        self._state[k.IN_TRANSACTION] = self._state[k.EMITTED] = self._state[k.EMITTED_HERE] = 0
        self._state[k.RESUME] = self._state[k.END] = position

    @property
    def filtered(self) -> int:
        """Rows left out by configuration so far."""
        return int(self._state[k.FILTERED])

    def decode(self, chunk: Chunk) -> Decoded:
        """Decode every message of a chunk."""
        work = self._prepare(chunk)
        messages = chunk.data.ctypes.data, chunk.starts.ctypes.data, chunk.ends.ctypes.data
        at = 0
        while True:
            why, at = k.decode_rows(
                *messages, at, chunk.count, self._state.ctypes.data,
                addresses(self._relations), len(self._relations.keys) - 1, *work.addresses,
                work.room,
            )  # fmt: skip
            if why == k.DONE:
                break
            if why == k.FAILED:
                if not self._resolve_at(chunk, at):
                    raise self._error(chunk, at)
                continue
            if why == k.ROOM:
                work.grow_rows()
                continue
            self._other(bytes(chunk.data[chunk.starts[at] : chunk.ends[at]]), work)
            at += 1
        return self._finish(work)

    def _prepare(self, chunk: Chunk) -> Workspace:
        size = int(chunk.ends[chunk.count - 1]) if chunk.count else 0
        kept = self._workspace
        if kept.capacity < size or kept.room < chunk.count:
            # Half as much again, so that chunks growing little by little do not cost each time.
            self._workspace = Workspace(size + size // 2, chunk.count + chunk.count // 2)
        state = self._state
        state[k.ROWS] = state[k.COMPLETE] = state[k.PATCH] = state[k.UNCHANGED] = 0
        state[k.BEFORE_VALUES : k.AFTER_BYTES + 1] = 0
        state[k.EMITTED] += state[k.EMITTED_HERE]
        state[k.EMITTED_HERE] = 0
        self._workspace.payloads.clear()
        return self._workspace

    def _finish(self, work: Workspace) -> Decoded:
        state = self._state
        huge = work.capacity > KEPT_BYTES
        if huge:
            self._workspace = Workspace(0, 0)
        try:
            rows = work.record_batch(state, copy=not huge)
        except NotUtf8 as exc:
            slot = self._slots[int(work.rows.slot[exc.row])]
            raise InvalidText(
                f"a value of {slot.schema}.{slot.table} is not valid UTF-8",
                detail="The database's encoding lets any bytes into text columns (SQL_ASCII).",
                hint="Find the rows with convert_from(column::bytea, 'UTF8') and correct them.",
            ) from None
        return Decoded(
            rows=rows,
            complete=int(state[k.COMPLETE]),
            closes_earlier=bool(state[k.PATCH]),
            open=bool(state[k.IN_TRANSACTION]),
            end=Lsn(int(state[k.END])),
        )

    def _other(self, data: bytes, work: Workspace) -> None:
        """Handle one message that the kernel does not know."""
        kind = chr(data[0])
        state = self._state
        if kind == "R":
            self._relation(parse_relation(data))
        elif kind == "Y":
            self._catalog.type_name(parse_type(data))
        elif kind == "M":
            self._message(parse_message(data), work)
        elif kind == "T":
            if not state[k.IN_TRANSACTION]:
                raise _malformed(kind, len(data), "stands outside a transaction")
            if not state[k.SKIP]:
                self._truncate(parse_truncate(data), work)
        elif kind == "O":
            parse_origin(data)  # where the transaction came from; nothing to log
        else:
            raise ProtocolError(
                f"unknown message type {kind!r}",
                detail="Protocol version 1 does not have it.",
            )

    def _relation(self, relation: Relation) -> None:
        if self._state[k.IN_TRANSACTION] and self._state[k.SKIP]:
            # How the table looked in a transaction that is in the log already. The catalog
            # knows what held at the end of the log: ask it when a later row needs to know.
            self._deferred[relation.oid] = relation
            self._set_relation(relation.oid, k.ABSENT)
            return
        self._deferred.pop(relation.oid, None)
        found = self._catalog.relation(relation, Lsn(int(self._state[k.LSN])))
        if found is None:
            self._set_relation(relation.oid, k.UNWANTED)
            return
        slot, width = found
        number = self._slot_number(slot)
        if number >= len(self._relations.widths):
            widths = np.zeros(2 * number, np.int32)
            widths[: len(self._relations.widths)] = self._relations.widths
            self._relations = self._relations._replace(widths=widths)
        self._relations.widths[number] = width
        self._set_relation(relation.oid, number)

    def _slot_number(self, slot: Slot) -> int:
        number = self._slot_ids.get(slot)
        if number is None:
            number = self._slot_ids[slot] = len(self._slots)
            self._slots.append(slot)
        return number

    def _resolve_at(self, chunk: Chunk, at: int) -> bool:
        """Whether the message failed only because its relation was put off until now."""
        if self._state[k.ERROR] != k.UNKNOWN_RELATION:
            return False
        start = int(chunk.starts[at]) + 1
        return self._resolve(int.from_bytes(chunk.data[start : start + 4].tobytes()))

    def _resolve(self, oid: int) -> bool:
        relation = self._deferred.get(oid)
        if relation is None:
            return False
        self._relation(relation)
        return True

    def _set_relation(self, oid: int, slot: int) -> None:
        self._known[oid] = slot
        keys, slots = self._relations.keys, self._relations.slots
        if 2 * len(self._known) > len(keys):
            keys, slots = np.zeros(2 * len(keys), np.int64), np.zeros(2 * len(keys), np.int32)
            for key, value in self._known.items():
                _put(keys, slots, key, value)
            self._relations = self._relations._replace(keys=keys, slots=slots)
        else:
            _put(keys, slots, oid, slot)

    def _truncate(self, message: Truncate, work: Workspace) -> None:
        payload = None
        if message.cascade or message.restart_identity:
            options = {True: "true", False: "false"}
            payload = (
                f'{{"cascade": {options[message.cascade]}, '
                f'"restart_identity": {options[message.restart_identity]}}}'
            )
        for oid in message.oids:
            if self._known.get(oid, k.ABSENT) == k.ABSENT and not self._resolve(oid):
                raise _malformed("T", 5 + 4 * len(message.oids), _ERRORS[k.UNKNOWN_RELATION])
            slot = self._known[oid]
            self._state[k.SEQ] += 1
            if slot == k.UNWANTED:
                self._state[k.FILTERED] += 1
            else:
                work.plain_row(self._state, TRUNCATE_CODE, slot, payload)

    def _message(self, message: LogicalMessage, work: Workspace) -> None:
        state = self._state
        if message.transactional:
            if not state[k.IN_TRANSACTION]:
                raise _malformed("M", len(message.content), "stands outside a transaction")
            if state[k.SKIP]:
                return
            # Its place is its transaction's; its own LSN says nothing that is in the log.
            placed = replace(message, lsn=Lsn(int(state[k.LSN])))
            row = self._catalog.message(placed, int(state[k.XID]))
            if row is not None:
                state[k.SEQ] += 1
                work.plain_row(state, OPS.index(row.op), self._slot_number(row.slot), row.payload)
                for relation in row.again:
                    self._relation(relation)
            return
        if state[k.IN_TRANSACTION]:
            raise _malformed("M", len(message.content), "stands inside a transaction")
        if message.lsn <= state[k.RESUME]:
            return
        state[k.END] = max(int(state[k.END]), message.lsn)
        row = self._catalog.message(message, 0)
        if row is not None:
            # One below its LSN: the next commit record may start exactly there.
            state[k.LSN], state[k.SEQ], state[k.XID] = message.lsn - 1, 1, 0
            state[k.COMMITTED_AT] = NO_TIME
            work.plain_row(state, OPS.index(row.op), self._slot_number(row.slot), row.payload)
            work.rows.last[state[k.ROWS] - 1] = 1
            state[k.COMPLETE] = state[k.ROWS]
            state[k.EMITTED_HERE] = 0

    def _error(self, chunk: Chunk, at: int) -> ProtocolError:
        data = chunk.data[chunk.starts[at] : chunk.ends[at]]
        kind = chr(data[0]) if len(data) else ""
        return _malformed(kind, len(data), _ERRORS[int(self._state[k.ERROR])])


def _put(keys: NDArray[np.int64], slots: NDArray[np.int32], oid: int, slot: int) -> None:
    """Enter a relation into the open-addressing table that ``kernel.find_slot`` reads."""
    mask = len(keys) - 1
    at = (oid * k.HASH_FACTOR) & mask
    while keys[at] not in (0, oid):
        at = (at + 1) & mask
    keys[at], slots[at] = oid, slot


def _malformed(kind: str, size: int, what: str) -> ProtocolError:
    return ProtocolError(
        f"malformed {_NAMES.get(kind, 'empty')} message",
        detail=f"The message of {size} bytes {what}.",
        hint="Nothing was confirmed; start the capture again, and report this if it stays.",
    )
