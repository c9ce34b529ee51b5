"""Ranges: the parts of a table whose checksums are compared, cut alike on both sides.

A single integer key is cut into ranges of 2^k keys: a shift gives the same number on both sides
for every value, and a range can be read through the index. Other tables are cut by a hash: of
the row, which costs nothing since it is there, or of the key where only a sample is read and a
row must fall into the same range on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pgtide.spark.sql_text import Sql

FINER = 8  # bits by which a range is cut further
ROWS_PER_RANGE = 2_000
MOST = 4_096
HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of an integer key."""

    source: str
    target: Sql
    low: int  # the smallest and the largest key of the source
    high: int
    shift: int
    hashed: Literal[""] = ""

    @classmethod
    def over(cls, source: str, target: Sql, low: int, high: int, rows: int) -> KeyRanges:
        """Ranges that fit a table of about so many rows."""
        # Keys on both sides of zero are never in one range: -1 >> 63 is -1.
        wanted, shift = max(2, _wanted(rows)), 0
        while (high >> shift) - (low >> shift) + 1 > wanted:
            shift += 1
        return cls(source, target, low, high, shift)

    @property
    def numbers(self) -> range:
        """The ranges that the source has rows in, or might have."""
        return range(self.low >> self.shift, (self.high >> self.shift) + 1)

    @property
    def of_source(self) -> str:
        """SQL of Postgres: the number of a row's range."""
        return f"({self.source}::bigint >> {self.shift})"

    @property
    def beside(self) -> int:
        """A row without a key, which only a target can have, counts beside the source's keys."""
        return self.low - 1 if self.low > -(2**63) else self.high

    @property
    def of_target(self) -> Sql:
        key = f"coalesce(CAST({self.target} AS BIGINT), {self.beside})"
        return Sql(f"shiftright({key}, {self.shift})")

    @property
    def outside(self) -> str:
        """SQL of Postgres: rows that are in none of the source's ranges."""
        return f"NOT {self.within(self.numbers)}"

    @property
    def finer(self) -> KeyRanges | None:
        """The same cut further, if that is possible."""
        return replace(self, shift=max(0, self.shift - FINER)) if self.shift else None

    def within(self, numbers: Iterable[int]) -> str:
        """SQL of Postgres: rows of these ranges, as spans of the key that an index finds."""
        spans: list[list[int]] = []
        for number in sorted(numbers):
            if spans and spans[-1][1] + 1 == number:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        bounds = (
            (max(a << self.shift, -(2**63)), min(((b + 1) << self.shift) - 1, 2**63 - 1))
            for a, b in spans
        )
        conditions = [f"{self.source} BETWEEN {a} AND {b}" for a, b in bounds]
        return f"({' OR '.join(conditions)})" if conditions else "false"


@dataclass(frozen=True, slots=True)
class HashRanges:
    """Ranges of a hash of 64 bits: ``hashed`` says of what."""

    hashed: Literal["row", "key"]
    bits: int

    @classmethod
    def over(cls, hashed: Literal["row", "key"], rows: int) -> HashRanges:
        return cls(hashed, max(1, (_wanted(rows) - 1).bit_length()))

    @property
    def numbers(self) -> range:
        half = 1 << (self.bits - 1)
        return range(-half, half)

    @property
    def of_source(self) -> str:
        return f"({self.hashed}_hash >> {HASH_BITS - self.bits})"

    @property
    def of_target(self) -> Sql:
        return Sql(f"shiftright(_pgtide_{self.hashed}_hash, {HASH_BITS - self.bits})")

    @property
    def finer(self) -> HashRanges | None:
        more = min(HASH_BITS, self.bits + FINER)
        return replace(self, bits=more) if more > self.bits else None

    def within(self, numbers: Iterable[int]) -> str:
        return f"{self.of_source} = ANY ('{{{','.join(map(str, numbers))}}}'::bigint[])"


Ranges: TypeAlias = KeyRanges | HashRanges


def sampled(numbers: range, share: float, seed: str) -> list[int]:
    """The ranges of a sample: the same ones for the same seed."""
    limit = int(share * 2**64)

    def drawn(number: int) -> int:
        digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
        return int.from_bytes(digest[:8], "big")

    chosen = [number for number in numbers if drawn(number) < limit]
    return chosen or [min(numbers, key=drawn)]


def _wanted(rows: int) -> int:
    return max(1, min(MOST, rows // ROWS_PER_RANGE))
