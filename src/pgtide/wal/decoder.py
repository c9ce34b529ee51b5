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
from pgtide.wal import kernel
from pgtide.wal import layout as f
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
from pgtide.wal.relations import NO_TABLE, RelationTable, Slot
from pgtide.wal.rows import NO_TIME, NotUtf8, Workspace

KEPT_BYTES = 16 << 20  # a workspace that grew beyond this for a huge message is given away
TRUNCATE_CODE = OPS.index("truncate")

_ERRORS = {
    f.TRUNCATED: "ends too early",
    f.UNKNOWN_RELATION: "names a relation that was not announced",
    f.COLUMN_COUNT: "has another number of columns than its relation",
    f.OUTSIDE_TRANSACTION: "stands outside a transaction",
    f.INSIDE_TRANSACTION: "stands inside another transaction",
    f.BAD_COMMIT: "does not close the transaction that was begun",
    f.BAD_KIND: "has a tuple of the wrong kind",
    f.TRAILING: "has trailing bytes",
    f.VALUE_KIND: "has a value of unknown kind",
    f.IMPOSSIBLE: "has an impossible position or time",
}
_NAMES = {
    "B": "Begin", "C": "Commit", "I": "Insert", "U": "Update", "D": "Delete", "R": "Relation",
    "Y": "Type", "T": "Truncate", "M": "Message", "O": "Origin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A logical message that becomes a row: ``message`` or ``ddl``."""

    op: str
    payload: str
    slot: Slot = NO_TABLE
    again: tuple[Relation, ...] = ()  # announced before, and meaning something else from here on


@dataclass(frozen=True, slots=True)
class Watermark:
    """A message of pgtide's own that marks a place in the stream, between two transactions."""

    token: str
    lsn: Lsn


class Catalog(Protocol):
    """Answers what relations and messages mean at their position."""

    def relation(self, relation: Relation, lsn: Lsn) -> tuple[Slot, int] | None:
        """Slot and number of columns of a relation, None if configuration leaves it out."""

    def type_name(self, message: TypeName) -> None:
        """Take note of a type's name."""

    def message(self, message: LogicalMessage, xid: int) -> LoggedMessage | Watermark | None:
        """The row for a logical message, None for those that are pgtide's own.

        A watermark only for one that is not transactional: decoding stops behind it.
        """


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
    messages: int  # up to which message of the chunk
    watermark: Watermark | None = None  # which was the last of them


class Decoder:
    """Keeps the state of the stream between chunks."""

    def __init__(self, catalog: Catalog, *, resume: Lsn) -> None:
        self._catalog = catalog
        self._state = np.zeros(f.STATE_SIZE, np.int64)
        self._state[f.RESUME] = self._state[f.END] = resume
        self._relations = RelationTable()
        self._deferred: dict[int, Relation] = {}
        self._workspace = Workspace(0, 0)
        self._watermark: Watermark | None = None

    @property
    def slots(self) -> list[Slot]:
        """Slots by number, as the ``slot`` column of decoded rows refers to them."""
        return self._relations.slots

    def number(self, slot: Slot) -> int:
        """The number of a slot, a new one if need be."""
        return self._relations.number(slot)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open at the end of the last chunk."""
        return bool(self._state[f.IN_TRANSACTION])

    @property
    def filtered(self) -> int:
        """Rows left out by configuration so far."""
        return int(self._state[f.FILTERED])

    def decode(self, chunk: Chunk, first: int = 0) -> Decoded:
        """Decode the messages of a chunk from the first on, up to the next watermark."""
        work = self._prepare(chunk)
        messages = chunk.data.ctypes.data, chunk.starts.ctypes.data, chunk.ends.ctypes.data
        at = first
        while self._watermark is None:
            why, at = kernel.decode_rows(
                *messages, at, chunk.count, self._state.ctypes.data,
                *self._relations.kernel_arguments(), *work.addresses, work.room,
            )  # fmt: skip
            if why == f.DONE:
                break
            if why == f.FAILED:
                if not self._resolve_at(chunk, at):
                    raise self._error(chunk, at)
                continue
            if why == f.ROOM:
                work.grow_rows()
                continue
            self._other(bytes(chunk.data[chunk.starts[at] : chunk.ends[at]]), work)
            at += 1
        watermark, self._watermark = self._watermark, None
        return self._finish(work, at, watermark)

    def _prepare(self, chunk: Chunk) -> Workspace:
        size = int(chunk.ends[chunk.count - 1]) if chunk.count else 0
        kept = self._workspace
        if kept.capacity < size or kept.room < chunk.count:
            # Half as much again, so that chunks growing little by little do not cost each time.
            self._workspace = Workspace(size + size // 2, chunk.count + chunk.count // 2)
        state = self._state
        state[f.ROWS] = state[f.COMPLETE] = state[f.PATCH] = state[f.UNCHANGED] = 0
        state[f.BEFORE_VALUES : f.AFTER_BYTES + 1] = 0
        state[f.EMITTED] += state[f.EMITTED_HERE]
        state[f.EMITTED_HERE] = 0
        self._workspace.payloads.clear()
        return self._workspace

    def _finish(self, work: Workspace, messages: int, watermark: Watermark | None) -> Decoded:
        state = self._state
        huge = work.capacity > KEPT_BYTES
        if huge:
            self._workspace = Workspace(0, 0)
        try:
            rows = work.record_batch(state, copy=not huge)
        except NotUtf8 as exc:
            slot = self._relations.slots[int(work.rows.slot[exc.row])]
            raise InvalidText(
                f"a value of {slot.schema}.{slot.table} is not valid UTF-8",
                detail="The database's encoding lets any bytes into text columns (SQL_ASCII).",
                hint="Find the rows with convert_from(column::bytea, 'UTF8') and correct them.",
            ) from None
        return Decoded(
            rows=rows,
            complete=int(state[f.COMPLETE]),
            closes_earlier=bool(state[f.PATCH]),
            open=bool(state[f.IN_TRANSACTION]),
            end=Lsn(int(state[f.END])),
            messages=messages,
            watermark=watermark,
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
            if not state[f.IN_TRANSACTION]:
                raise _malformed(kind, len(data), "stands outside a transaction")
            if not state[f.SKIP]:
                self._truncate(parse_truncate(data), work)
        elif kind == "O":
            parse_origin(data)  # where the transaction came from; nothing to log
        else:
            raise ProtocolError(
                f"unknown message type {kind!r}",
                detail="Protocol version 1 does not have it.",
            )

    def _relation(self, relation: Relation) -> None:
        if self._state[f.IN_TRANSACTION] and self._state[f.SKIP]:
            # How the table looked in a transaction that is in the log already. The catalog
            # knows what held at the end of the log: ask it when a later row needs to know.
            self._deferred[relation.oid] = relation
            self._relations.forget(relation.oid)
            return
        self._deferred.pop(relation.oid, None)
        found = self._catalog.relation(relation, Lsn(int(self._state[f.LSN])))
        if found is None:
            self._relations.leave_out(relation.oid)
        else:
            self._relations.set(relation.oid, *found)

    def _resolve_at(self, chunk: Chunk, at: int) -> bool:
        """Whether the message failed only because its relation was put off until now."""
        if self._state[f.ERROR] != f.UNKNOWN_RELATION:
            return False
        start = int(chunk.starts[at]) + 1
        return self._resolve(int.from_bytes(chunk.data[start : start + 4].tobytes()))

    def _resolve(self, oid: int) -> bool:
        relation = self._deferred.get(oid)
        if relation is None:
            return False
        self._relation(relation)
        return True

    def _truncate(self, message: Truncate, work: Workspace) -> None:
        payload = None
        if message.cascade or message.restart_identity:
            options = {True: "true", False: "false"}
            payload = (
                f'{{"cascade": {options[message.cascade]}, '
                f'"restart_identity": {options[message.restart_identity]}}}'
            )
        for oid in message.oids:
            if self._relations.slot_of(oid) == f.ABSENT and not self._resolve(oid):
                raise _malformed("T", 5 + 4 * len(message.oids), _ERRORS[f.UNKNOWN_RELATION])
            slot = self._relations.slot_of(oid)
            self._state[f.SEQ] += 1
            if slot == f.UNWANTED:
                self._state[f.FILTERED] += 1
            else:
                work.plain_row(self._state, TRUNCATE_CODE, slot, payload)

    def _message(self, message: LogicalMessage, work: Workspace) -> None:
        state = self._state
        if message.transactional:
            if not state[f.IN_TRANSACTION]:
                raise _malformed("M", len(message.content), "stands outside a transaction")
            if state[f.SKIP]:
                return
            # Its place is its transaction's; its own LSN says nothing that is in the log.
            placed = replace(message, lsn=Lsn(int(state[f.LSN])))
            row = self._catalog.message(placed, int(state[f.XID]))
            if isinstance(row, LoggedMessage):
                state[f.SEQ] += 1
                work.plain_row(
                    state, OPS.index(row.op), self._relations.number(row.slot), row.payload
                )
                for relation in row.again:
                    self._relation(relation)
            return
        if state[f.IN_TRANSACTION]:
            raise _malformed("M", len(message.content), "stands inside a transaction")
        if message.lsn <= state[f.RESUME]:
            return
        state[f.END] = max(int(state[f.END]), message.lsn)
        row = self._catalog.message(message, 0)
        if isinstance(row, Watermark):
            self._watermark = row
        elif row is not None:
            # One below its LSN: the next commit record may start exactly there.
            state[f.LSN], state[f.SEQ], state[f.XID] = message.lsn - 1, 1, 0
            state[f.COMMITTED_AT] = NO_TIME
            work.plain_row(state, OPS.index(row.op), self._relations.number(row.slot), row.payload)
            work.rows.last[state[f.ROWS] - 1] = 1
            state[f.COMPLETE] = state[f.ROWS]
            state[f.EMITTED_HERE] = 0

    def _error(self, chunk: Chunk, at: int) -> ProtocolError:
        data = chunk.data[chunk.starts[at] : chunk.ends[at]]
        kind = chr(data[0]) if len(data) else ""
        return _malformed(kind, len(data), _ERRORS[int(self._state[f.ERROR])])


def _malformed(kind: str, size: int, what: str) -> ProtocolError:
    return ProtocolError(
        f"malformed {_NAMES.get(kind, 'empty')} message",
        detail=f"The message of {size} bytes {what}.",
        hint="Nothing was confirmed; start the capture again, and report this if it stays.",
    )
