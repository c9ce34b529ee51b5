"""The relations of a stream: what the rows of each are called, in a form the kernel reads.

A row has the number of a slot; the slot says which schema, table and shape that is. Several
relations may share one, and one relation has another slot after each change of its shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgtide.wal import layout as f
from pgtide.wal.memory import addresses

_FIRST_SIZE = 64  # a power of two, as every size of the table


@dataclass(frozen=True, slots=True)
class Slot:
    """What the schema, table and shape columns of a row say."""

    schema: str | None
    table: str | None
    shape: int | None = None


NO_TABLE = Slot(None, None)


class RelationTable:
    """Slots by number, and the number of each relation's slot."""

    def __init__(self) -> None:
        self.slots = [NO_TABLE]
        self._numbers: dict[Slot, int] = {NO_TABLE: 0}
        self._by_oid: dict[int, int] = {}
        self._arrays = f.Relations(
            np.zeros(_FIRST_SIZE, np.int64),
            np.zeros(_FIRST_SIZE, np.int32),
            np.zeros(_FIRST_SIZE, np.int32),
        )

    def kernel_arguments(self) -> tuple[f.Relations, int]:
        """Addresses for the kernel, valid until the table changes, and the hash table's mask."""
        return addresses(self._arrays), len(self._arrays.keys) - 1

    def number(self, slot: Slot) -> int:
        """The number of a slot, a new one if need be."""
        number = self._numbers.get(slot)
        if number is None:
            number = self._numbers[slot] = len(self.slots)
            self.slots.append(slot)
        return number

    def slot_of(self, oid: int) -> int:
        """The number of a relation's slot, UNWANTED or ABSENT."""
        return self._by_oid.get(oid, f.ABSENT)

    def set(self, oid: int, slot: Slot, width: int) -> None:
        """Rows of this relation are of this slot and have so many columns."""
        number = self.number(slot)
        if number >= len(self._arrays.widths):
            self._arrays = self._arrays._replace(widths=_grown(self._arrays.widths, 2 * number))
        self._arrays.widths[number] = width
        self._put(oid, number)

    def leave_out(self, oid: int) -> None:
        """Rows of this relation are not wanted."""
        self._put(oid, f.UNWANTED)

    def forget(self, oid: int) -> None:
        """The kernel is to stop at this relation."""
        self._put(oid, f.ABSENT)

    def _put(self, oid: int, number: int) -> None:
        self._by_oid[oid] = number
        size = len(self._arrays.keys)
        if 2 * len(self._by_oid) <= size:
            _enter(self._arrays, oid, number)
            return
        self._arrays = self._arrays._replace(
            keys=np.zeros(2 * size, np.int64), slots=np.zeros(2 * size, np.int32)
        )
        for known, its_number in self._by_oid.items():
            _enter(self._arrays, known, its_number)


def _enter(arrays: f.Relations, oid: int, number: int) -> None:
    """Enter a relation into the open-addressing table that the kernel reads."""
    keys = arrays.keys
    mask = len(keys) - 1
    at = (oid * f.HASH_FACTOR) & mask
    while keys[at] not in (0, oid):
        at = (at + 1) & mask
    keys[at], arrays.slots[at] = oid, number


def _grown(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    bigger = np.zeros(size, array.dtype)
    bigger[: len(array)] = array
    return bigger
