"""Which transactions a snapshot sees: the answer of ``pg_current_snapshot()``.

Postgres writes a commit record before the transaction becomes visible, so a transaction may
have been delivered through the slot and still be hidden from a snapshot taken later. With a
synchronous standby that does not answer this lasts as long as the standby pleases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

XID_BITS = 32
XID_MASK = (1 << XID_BITS) - 1


@dataclass(frozen=True, slots=True)
class Visibility:
    """A snapshot by its transaction ids, all of 64 bits and of top-level transactions."""

    xmin: int  # every transaction before it has ended
    xmax: int  # every transaction from it on had not begun
    running: tuple[int, ...] = ()  # of those between, the ones that had not ended

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read the form ``xmin:xmax:xip,xip``."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))

    def age(self) -> tuple[int, int, int]:
        """Orders snapshots of one server by the time they were taken."""
        return self.xmin, self.xmax, -len(self.running)

    def hides(self, xids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which transactions it does not see; ids of 32 bits, as the WAL has them."""
        full = self._widened(xids)
        hidden: NDArray[np.bool_] = full >= self.xmax
        if self.running:
            hidden |= np.isin(full, np.array(self.running, np.int64))
        return hidden

    def _widened(self, xids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of 64 bits: the nearest to ``xmax``, as ids wrap around after 4 billion."""
        distance = (xids - (self.xmax & XID_MASK)) & XID_MASK
        behind = np.where(distance >= 1 << (XID_BITS - 1), distance - (1 << XID_BITS), distance)
        widened: NDArray[np.int64] = self.xmax + behind
        return widened

    def running_in_wal(self) -> list[int]:
        """The running ones as the WAL has them, in 32 bits."""
        return [xid & XID_MASK for xid in self.running]
