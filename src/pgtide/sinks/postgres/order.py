"""Which way is tried first: set by set, or in the source's own order.

Sources whose rows change places, as values of a unique column do, do so again and again. A unit
that is tried set by set in vain is staged twice, which takes longer than what it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtide.position import Position
from pgtide.sinks.postgres.transaction import TargetTransaction

IN_ORDER_ROWS = 10_000
"""At most, of a unit: an event by itself takes the target about 0.1 ms, and in a set far less."""

UNITS = 10  # that are applied in order before sets are tried again


@dataclass
class Order:
    """What was learnt from the units before."""

    _left: int = 0  # units to apply in order

    def run(self, transaction: TargetTransaction, rows: int, reached: Position) -> None:
        """Apply a unit of so many rows to a target that is at ``reached``."""
        in_order = self._left > 0 and rows < IN_ORDER_ROWS
        needed = transaction.run(reached, in_order=in_order)
        if not needed:
            self._left = 0
        elif in_order:
            self._left -= 1
        else:
            self._left = UNITS
