"""A table's checksums, keys and columns as the source computes them, in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtide.postgres.connection import SqlConnection, translate
from pgtide.verify.canonical import identifier, row_source
from pgtide.verify.planning import TablePlan
from pgtide.verify.ranges import HashRanges, KeyRanges, Ranges
from pgtide.verify.relations import Relation

MASK = 2**64 - 1
SPANS = 50  # of a key, in one query: more are found by a scan
Sums = dict[int, tuple[int, int]]  # by range: rows, and the sum of their hashes modulo 2^64


@dataclass(frozen=True)
class Row:
    """A row of either side as narrowing sees it."""

    key_hash: int
    row_hash: int
    key: tuple[str | None, ...]  # NULL only where a mirror has what the source cannot have


def merged(sums: Sums, more: Iterable[tuple[int, int, Any]]) -> None:
    """Add checksums of a part of a table."""
    for number, count, total in more:
        rows, known = sums.get(number, (0, 0))
        sums[number] = rows + count, (known + int(total)) & MASK


@dataclass(frozen=True)
class SourceTable:
    """The queries of one table; ``in_flight`` are rows that do not count."""

    plan: TablePlan
    in_flight: Sequence[tuple[str, ...]] | Sequence[int]  # keys, or hashes of rows without a key

    def segments(self, chosen: Sequence[int] | None, ranges: Ranges) -> list[tuple[Relation, str]]:
        """The parts that a scan consists of: all, or what a sample needs."""
        if chosen is not None and isinstance(ranges, KeyRanges):
            parts = [chosen[at : at + SPANS] for at in range(0, len(chosen), SPANS)]
            spans = [ranges.within(part) for part in parts]
            return [(relation, span) for relation in self.plan.relations for span in spans]
        return [(r, condition) for r in self.plan.relations for condition in r.segments()]

    def key_bounds(self, connection: SqlConnection) -> tuple[int, int] | None:
        """Smallest and largest key, where that is one integer; None for no rows."""
        key = identifier(self.plan.keys[0].name)
        bounds: list[int] = []
        for relation in self.plan.relations:
            ((low, high),) = _run(
                connection, f"SELECT min({key}), max({key}) FROM ONLY {relation.name}"
            )
            bounds += [low, high] if low is not None else []
        return (min(bounds), max(bounds)) if bounds else None

    def checksums(
        self,
        connection: SqlConnection,
        relation: Relation,
        segment: str,
        ranges: Ranges,
        chosen: str = "",
    ) -> list[tuple[int, int, Any]]:
        """Range, rows and sum of hashes of a segment."""
        where = self._where(relation, segment, "" if _is_hashed(ranges) else chosen)
        number = ranges.of_source
        if isinstance(ranges, HashRanges) or not self.plan.keys:
            inner = f"SELECT {self._hashes(ranges)} FROM ONLY {relation.name}{where} OFFSET 0"
            query = f"SELECT {number}, count(*), sum(row_hash) FROM ({inner}) AS hashed"
            query += self._hash_filter(chosen)
        else:
            query = f"SELECT {number}, count(*), sum({self._row_hash}) FROM ONLY {relation.name}"
            query += where
        return [(row[0], row[1], row[2]) for row in _run(connection, f"{query} GROUP BY 1")]

    def rows(
        self, connection: SqlConnection, ranges: Ranges, numbers: Sequence[int]
    ) -> Iterator[Row]:
        """The rows of some ranges."""
        keys = ", ".join(_printed(identifier(key.name)) for key in self.plan.keys) or "NULL"
        for relation in self.plan.relations:
            chosen = ranges.within(numbers)
            if isinstance(ranges, KeyRanges) and chosen.count(" OR ") >= SPANS:
                chosen = f"{ranges.of_source} = ANY ('{{{','.join(map(str, numbers))}}}'::bigint[])"
            hashed = isinstance(ranges, HashRanges)
            where = self._where(relation, "" if hashed else chosen)
            inner = (
                f"SELECT {self._key_hash} AS key_hash, {self._row_hash} AS row_hash,"
                f" ARRAY[{keys}]::text[] AS key FROM ONLY {relation.name}{where} OFFSET 0"
            )
            query = f"SELECT key_hash, row_hash, key FROM ({inner}) AS hashed"
            query += self._hash_filter(chosen if hashed else "")
            for key_hash, row_hash, key in _run(connection, query):
                yield Row(key_hash, row_hash, tuple(key) if self.plan.keys else ())

    def column_hashes(
        self, connection: SqlConnection, keys: Sequence[tuple[str | None, ...]]
    ) -> dict[int, list[int]]:
        """By key, a hash of each column."""
        hashes = ", ".join(_hash(row_source([value])) for value in self.plan.values)
        among = f"{self._key} IN ({self._key_list(keys)})"
        found = {}
        for relation in self.plan.relations:
            query = f"SELECT {self._key_hash}, ARRAY[{hashes}] FROM ONLY {relation.name}"
            for key_hash, columns in _run(connection, query + self._where(relation, among)):
                found[key_hash] = columns
        return found

    # -- pieces of SQL ------------------------------------------------------------------

    @property
    def _row_hash(self) -> str:
        return _hash(row_source(self.plan.values))

    @property
    def _key_hash(self) -> str:
        return _hash(row_source(self.plan.key_values)) if self.plan.keys else "0::bigint"

    def _hashes(self, ranges: Ranges) -> str:
        more = f", {self._key_hash} AS key_hash" if ranges.hashed == "key" else ""
        return f"{self._row_hash} AS row_hash{more}"

    @property
    def _key(self) -> str:
        return f"({', '.join(identifier(key.name) for key in self.plan.keys)})"

    def _key_list(self, keys: Sequence[tuple[str | None, ...]]) -> str:
        """A query for these keys, with their types."""
        columns = self.plan.key_columns
        arrays = [
            f"{sql.Literal([key[n] for key in keys]).as_string(None)}::text[]"
            for n in range(len(columns))
        ]
        names = [f"k{n}" for n in range(len(columns))]
        typed = [f"{n}::{c.type_name}" for n, c in zip(names, columns, strict=True)]
        rows = f"ROWS FROM ({', '.join(f'unnest({array})' for array in arrays)})"
        return f"SELECT {', '.join(typed)} FROM {rows} AS k({', '.join(names)})"

    def _where(self, relation: Relation, *conditions: str) -> str:
        every = [relation.condition, *conditions]
        if self.plan.mirror.reader.policy == "null":
            # A row whose key the mirror's type cannot hold has no place in it.
            every += [f"({key.value.source}) IS NOT NULL" for key in self.plan.keys]
        if self.in_flight and self.plan.keys:
            keys = [key for key in self.in_flight if isinstance(key, tuple)]
            every.append(f"{self._key} NOT IN ({self._key_list(keys)})")
        given = [f"({condition})" for condition in every if condition]
        return f" WHERE {' AND '.join(given)}" if given else ""

    def _hash_filter(self, chosen: str) -> str:
        every = [chosen] if chosen else []
        if self.in_flight and not self.plan.keys:
            every.append(f"row_hash <> ALL ('{{{','.join(map(str, self.in_flight))}}}'::bigint[])")
        return f" WHERE {' AND '.join(every)}" if every else ""


def _is_hashed(ranges: Ranges) -> bool:
    return isinstance(ranges, HashRanges)


def _hash(row: str) -> str:
    """The first 64 bits of the digest, as an integer."""
    return f"('x' || md5({row}))::bit(64)::bigint"


def _printed(column: str) -> str:
    return f"concat({column})"


def _run(connection: SqlConnection, query: str) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query.encode()).fetchall()
    except psycopg.Error as exc:
        raise translate(exc) from exc
