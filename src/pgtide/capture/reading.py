"""A chunk of a refresh between its reading and its place in the log.

The rows of a chunk stand at its high watermark, behind everything that was delivered before.
A row whose key was changed by a transaction that was delivered and that the chunk's snapshot
does not see is left out: what the log has is newer. If that change did not carry the whole row,
the key is read once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pgtide.capture.changed_keys import ChangedKeys, Hidden, key_texts, split_key, texts
from pgtide.capture.refresh_rows import as_decoded, read_rows, sweep_payload, sweep_rows
from pgtide.capture.windows import Place
from pgtide.log.refreshes import Refresh
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.snapshot.key_chunks import Chunk, ReadRows
from pgtide.snapshot.key_order import Key
from pgtide.wal.decoder import Decoded
from pgtide.wal.relations import Slot


@dataclass(slots=True)
class Reading:
    """A chunk that was read and waits for its high watermark."""

    request: Refresh
    oid: int
    chunk: Chunk
    tracking: ChangedKeys  # what was being remembered when it was read
    read: ReadRows
    outcome: Literal["waiting", "released", "again"] = "waiting"
    lsn: Lsn = Lsn(0)  # of the watermark
    rows: int = 0
    dropped: int = 0
    incomplete: list[Key] = field(default_factory=list)  # to be read by themselves

    def passed(self, place: Place, tracked: dict[int, ChangedKeys]) -> Decoded | None:
        """Decide what of the chunk is still true here."""
        self.lsn = place.lsn
        shape = self._shape(place)
        # Tracking that began anew does not know what happened before, and this snapshot may.
        if shape is None or tracked.get(self.oid) is not self.tracking:
            self.outcome = "again"
            return None
        hidden = self.tracking.hidden_from(self.read.visibility)
        if hidden.altered:
            self.outcome = "again"
            return None
        self.outcome = "released"
        return self._release(place, shape, hidden)

    def _release(self, place: Place, shape: Shape, hidden: Hidden) -> Decoded | None:
        rows = self.read.rows
        keys = key_texts(rows, self.read.shape.keys)
        if hidden.everything:
            kept = rows.slice(0, 0)
        else:
            newer = pc.is_in(keys, value_set=hidden.keys)
            kept = rows.filter(pc.invert(newer))
            lacking = keys.filter(pc.is_in(keys, value_set=hidden.unsent))
            width = len(self.read.shape.keys)
            self.incomplete = [split_key(key, width) for key in texts(lacking)]
        self.rows, self.dropped = len(kept), len(rows) - len(kept)
        number = place.decoder.number(Slot(shape.schema, shape.table, shape.id))
        batches = []
        lsn, read_at = place.lsn, self.read.read_at
        if len(kept):
            batches.append(read_rows(kept, slot=number, lsn=lsn, read_at=read_at))
        if gone := self._gone(keys, hidden):
            payload = sweep_payload(self.request.id, Position(Lsn(lsn - 1)), keys=gone)
            first = len(kept)
            batches.append(sweep_rows([number], payload, first=first, lsn=lsn, read_at=read_at))
        return as_decoded(batches, place.lsn) if batches else None

    def _gone(self, found: pa.Array[Any], hidden: Hidden) -> list[Key]:
        """Keys that were asked for, and that neither the source nor a newer change has."""
        if not self.request.replace or self.request.keys is None or self.chunk.keys is None:
            return []
        width = len(self.read.shape.keys)
        known = {split_key(key, width) for key in texts(found)}
        known |= {split_key(key, width) for key in texts(hidden.keys)}
        return [] if hidden.everything else [key for key in self.chunk.keys if key not in known]

    def _shape(self, place: Place) -> Shape | None:
        """The shape that holds here, if the chunk was read under it."""
        current, read = place.shapes.current.get(self.oid), self.read.shape
        if current is not None and _columns(current) == _columns(read):
            return current
        sent = None if current is None else [c for c in _columns(current) if not c[-1]]
        if sent == _columns(read) or current is None or not place.told_of_ddl:
            # The shape that the log began with names columns that are not sent as well.
            return place.shapes.assign(replace(read, since=Lsn(place.lsn - 1)))
        return None


def _columns(shape: Shape) -> list[tuple[int | None, str, int, int, bool]]:
    return [(c.attnum, c.name, c.type_oid, c.typmod, c.generated) for c in shape.columns]


@dataclass(slots=True)
class Beginning:
    """The low watermark: from here on the table's changes are tracked."""

    oid: int
    tracking: ChangedKeys = field(default_factory=ChangedKeys)
    lsn: Lsn | None = None

    def passed(self, place: Place, tracked: dict[int, ChangedKeys]) -> Decoded | None:
        self.lsn = place.lsn
        tracked[self.oid] = self.tracking
        return None


@dataclass(slots=True)
class Ending:
    """The last watermark of a refresh: everything that was read lies before it."""

    request: Refresh
    since: Lsn
    relations: tuple[int, ...]
    lsn: Lsn | None = None

    def passed(self, place: Place, tracked: dict[int, ChangedKeys]) -> Decoded | None:
        self.lsn = place.lsn
        request = self.request
        shapes = [place.shapes.current.get(oid) for oid in self.relations]
        swept = [shape for shape in shapes if shape is not None]
        if not request.replace or request.where or request.keys or not swept:
            return None
        slots = [place.decoder.number(Slot(s.schema, s.table, s.id)) for s in swept]
        payload = sweep_payload(
            request.id, Position(self.since), low=request.low, high=request.high
        )
        at = datetime.now(UTC)
        rows = sweep_rows(slots, payload, first=0, lsn=place.lsn, read_at=at)
        return as_decoded([rows], place.lsn)
