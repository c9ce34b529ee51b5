"""Watermarks: where the stream of a capture and the readers of a refresh meet.

A reader sends a watermark, a logical message with a random token, and says here what is to
happen when it comes back through the stream. The capturing side tells here of every row, DDL
command and commit, and asks at every watermark what belongs there. Both sides are threads of one
process; nothing here is remembered after a crash, and nothing has to be.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from pgtide.capture.changed_keys import ChangedKeys
from pgtide.capture.ddl import DdlCommand
from pgtide.log.shapes import ShapeStore
from pgtide.position import Lsn
from pgtide.postgres.visibility import Visibility
from pgtide.shape import Shape
from pgtide.wal.decoder import Decoded, Decoder, Watermark
from pgtide.wal.relations import Slot

# Keys of one table that are remembered; then it is tracked anew, and open chunks are read again.
MOST_KEYS = 2_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a watermark passes: between two transactions, and what the stream knows there."""

    lsn: Lsn
    decoder: Decoder
    shapes: ShapeStore
    told_of_ddl: bool  # event triggers tell of every change of a table


class Passing(Protocol):
    """What waits for a watermark."""

    def passed(self, place: Place, tracked: dict[int, ChangedKeys]) -> Decoded | None:
        """The rows that belong to this place, if any; called by the capturing thread."""


class Windows:
    """Shared by the thread that captures and those that refresh."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._tracked: dict[int, ChangedKeys] = {}
        self._expected: dict[str, Passing] = {}
        self.position = Lsn(0)  # the log has everything up to here

    # -- for those who refresh ------------------------------------------------------------

    def expect(self, passing: Passing) -> str:
        """A token for a watermark that is about to be sent."""
        token = secrets.token_hex(16)
        with self._condition:
            self._expected[token] = passing
        return token

    def dismiss(self, token: str) -> None:
        """Nothing is to happen at a watermark any more."""
        with self._condition:
            self._expected.pop(token, None)

    def is_expected(self, token: str) -> bool:
        """Whether a watermark has not come yet."""
        return token in self._expected

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something has come to pass; asked whenever the stream has moved."""
        with self._condition:
            return self._condition.wait_for(done, timeout_s)

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._condition:
            self._condition.notify_all()

    def seed(self, oid: int, rows: pa.RecordBatch, shape: Shape) -> None:
        """Add changes from before tracking began."""
        with self._condition:
            if oid in self._tracked:
                self._tracked[oid].observe(rows, shape)

    def take_moved(self, oid: int) -> list[str]:
        """Keys that rows have moved to without all of their values, since this was last asked."""
        with self._condition:
            changed = self._tracked.get(oid)
            if changed is None:
                return []
            moved, changed.moved = changed.moved, []
            return moved

    def tracks(self, oid: int, tracking: ChangedKeys) -> bool:
        """Whether the changes of a table are still being remembered there."""
        return self._tracked.get(oid) is tracking

    def forget_seen(self, tracking: ChangedKeys, visibility: Visibility) -> None:
        """Forget changes that every snapshot sees which is still to come."""
        with self._condition:
            tracking.forget_seen_by(visibility)

    def stop_tracking(self, oid: int) -> None:
        """The table is not being refreshed any longer."""
        with self._condition:
            self._tracked.pop(oid, None)

    # -- for the thread that captures -----------------------------------------------------

    def observe(self, decoded: Decoded, slots: Sequence[Slot], shapes: Mapping[int, Shape]) -> None:
        """Take note of decoded rows."""
        if not self._tracked or not decoded.rows.num_rows:
            return
        numbers = decoded.rows.column("slot").to_numpy()
        with self._condition:
            for number in np.unique(numbers).tolist():
                shape = shapes.get(slots[number].shape or 0)
                changed = self._tracked.get(shape.oid) if shape else None
                if shape is None or changed is None:
                    continue
                changed.observe(decoded.rows.filter(pa.array(numbers == number)), shape)
                if changed.count > MOST_KEYS:
                    del self._tracked[shape.oid]

    def altered(self, command: DdlCommand, xid: int) -> None:
        """Take note of a DDL command."""
        if not self._tracked:
            return
        oids = {layout.oid for layout in command.layouts}
        oids |= {item["oid"] for item in command.dropped if "oid" in item}
        with self._condition:
            for oid, changed in self._tracked.items():
                if oid in oids or command.unknown:
                    changed.altered(xid)

    def pass_watermark(
        self, watermark: Watermark, decoder: Decoder, shapes: ShapeStore, *, told_of_ddl: bool
    ) -> Decoded | None:
        """What belongs to this place of the stream."""
        with self._condition:
            # Anybody may send such a message; and after a restart our own old ones come again.
            passing = self._expected.pop(watermark.token, None)
            if passing is None:
                return None
            place = Place(watermark.lsn, decoder, shapes, told_of_ddl)
            rows = passing.passed(place, self._tracked)
            self._condition.notify_all()
            return rows

    def committed(self, position: Lsn) -> None:
        """Everything up to here is in the log."""
        with self._condition:
            self.position = position
            self._condition.notify_all()
