"""A table's checksums, keys and columns as Postgres computes them, in one snapshot.

The same queries serve the source and a target that is a Postgres database, each with its own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from pgtide import oids
from pgtide.postgres.connection import SqlConnection, translate
from pgtide.shape import Column
from pgtide.verify.canonical import identifier, row_bytes
from pgtide.verify.ranges import HashRanges, KeyRanges, Ranges
from pgtide.verify.relations import Relation

MASK = 2**64 - 1
AT_ONCE = 10_000  # rows that are sent to be hashed
SPANS = 50  # of a key, in one query: more are found by a scan
Sums = dict[int, tuple[int, int]]  # by range: rows, and the sum of their hashes modulo 2^64
InFlight: TypeAlias = Sequence[tuple[str, ...]] | Sequence[int]
"""Rows that do not count: keys as texts, or hashes of rows of a table without a key."""


@dataclass(frozen=True)
class KeyColumn:
    """A column of the key on one side."""

    name: str  # quoted
    type: str  # as Postgres writes it
    nullable: bool = False  # nothing keeps a target from having such rows
    by_text: bool = False  # an extension's type has no operators in a session without search path

    @classmethod
    def of(cls, column: Column, *, nullable: bool = False) -> KeyColumn:
        own = (column.base_oid or column.type_oid) >= oids.FIRST_USER_OID
        return cls(identifier(column.name), column.type_name, nullable, own)

    @property
    def printed(self) -> str:
        """SQL: its text, as the log has it."""
        text = f"concat({self.name})"
        there = f"{self.name} IS DISTINCT FROM NULL"
        return f"CASE WHEN {there} THEN {text} END" if self.nullable else text

    @property
    def compared(self) -> str:
        """SQL: what keys that are given as texts are compared with."""
        return self.printed if self.by_text else self.name

    def given(self, text: str) -> str:
        """SQL: a text, to be compared with that."""
        return text if self.by_text else f"{text}::{self.type}"


@dataclass(frozen=True)
class Side:
    """A table where it is: its relations, and SQL for the values that both sides have."""

    relations: tuple[Relation, ...]
    values: tuple[str, ...]
    keys: tuple[KeyColumn, ...] = ()  # empty for a table without a key
    key_values: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()  # of rows that count at all

    @property
    def rows(self) -> int:
        """About so many."""
        return sum(relation.rows for relation in self.relations)


@dataclass(frozen=True)
class Row:
    """A row of either side as narrowing sees it."""

    key_hash: int
    row_hash: int
    key: tuple[str | None, ...]  # NULL only where a target has what the source cannot have


def merged(sums: Sums, more: Iterable[tuple[int, int, Any]]) -> None:
    """Add checksums of a part of a table."""
    for number, count, total in more:
        rows, known = sums.get(number, (0, 0))
        sums[number] = rows + count, (known + int(total)) & MASK


@dataclass(frozen=True)
class PostgresTable:
    """The queries of one table."""

    side: Side
    in_flight: InFlight = ()

    def segments(self, chosen: Sequence[int] | None, ranges: Ranges) -> list[tuple[Relation, str]]:
        """The parts that a scan consists of: all, or what a sample needs."""
        if chosen is not None and isinstance(ranges, KeyRanges):
            parts = [chosen[at : at + SPANS] for at in range(0, len(chosen), SPANS)]
            spans = [ranges.within(part) for part in parts]
            return [(relation, span) for relation in self.side.relations for span in spans]
        return [(r, condition) for r in self.side.relations for condition in r.segments()]

    def key_bounds(self, connection: SqlConnection) -> tuple[int, int] | None:
        """Smallest and largest key, where that is one integer; None for no rows."""
        key = self.side.keys[0].name
        bounds: list[int] = []
        for relation in self.side.relations:
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
        if isinstance(ranges, HashRanges) or not self.side.keys:
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
        keys = ", ".join(key.printed for key in self.side.keys) or "NULL"
        for relation in self.side.relations:
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
                yield Row(key_hash, row_hash, tuple(key) if self.side.keys else ())

    def column_hashes(
        self, connection: SqlConnection, keys: Sequence[tuple[str | None, ...]]
    ) -> dict[int, list[int]]:
        """By key, a hash of each column."""
        hashes = ", ".join(_hash(row_bytes([value])) for value in self.side.values)
        among = f"{self._key} IN ({self._key_list(keys)})"
        found = {}
        for relation in self.side.relations:
            query = f"SELECT {self._key_hash}, ARRAY[{hashes}] FROM ONLY {relation.name}"
            for key_hash, columns in _run(connection, query + self._where(relation, among)):
                found[key_hash] = columns
        return found

    def hashes_of(
        self,
        connection: SqlConnection,
        columns: Sequence[tuple[str, str]],
        rows: Iterable[Sequence[str | None]],
    ) -> set[int]:
        """Hashes of rows that are given as texts; ``columns``: their names and types."""
        names = [f"c{n}" for n in range(len(columns))]
        typed = [f"{n}::{type_} AS {name}" for n, (name, type_) in zip(names, columns, strict=True)]
        given = f"SELECT {', '.join(typed)} FROM ROWS FROM ({{}}) AS g({', '.join(names)})"
        query = f"SELECT {self._row_hash} FROM ({given}) AS row_".replace("%", "%%")
        arrays = ", ".join(["unnest(%s::text[])"] * len(columns))
        found: set[int] = set()
        for some in _portions(rows):
            # As parameters: statements are what servers write into their logs.
            texts = [[row[n] for row in some] for n in range(len(columns))]
            answer = _run(connection, query.replace("{}", arrays), texts)
            found.update(row[0] for row in answer)
        return found

    # -- pieces of SQL ------------------------------------------------------------------

    @property
    def _row_hash(self) -> str:
        return _hash(row_bytes(self.side.values))

    @property
    def _key_hash(self) -> str:
        return _hash(row_bytes(self.side.key_values)) if self.side.keys else "0::bigint"

    def _hashes(self, ranges: Ranges) -> str:
        more = f", {self._key_hash} AS key_hash" if ranges.hashed == "key" else ""
        return f"{self._row_hash} AS row_hash{more}"

    @property
    def _key(self) -> str:
        return f"({', '.join(key.compared for key in self.side.keys)})"

    def _key_list(self, keys: Sequence[tuple[str | None, ...]]) -> str:
        """A query for these keys, with their types."""
        columns = self.side.keys
        arrays = [
            f"{sql.Literal([key[n] for key in keys]).as_string(None)}::text[]"
            for n in range(len(columns))
        ]
        names = [f"k{n}" for n in range(len(columns))]
        typed = [column.given(name) for name, column in zip(names, columns, strict=True)]
        rows = f"ROWS FROM ({', '.join(f'unnest({array})' for array in arrays)})"
        return f"SELECT {', '.join(typed)} FROM {rows} AS k({', '.join(names)})"

    def _where(self, relation: Relation, *conditions: str) -> str:
        every = [relation.condition, *conditions, *self.side.conditions]
        if self.in_flight and self.side.keys:
            keys = [key for key in self.in_flight if isinstance(key, tuple)]
            among = f"{self._key} NOT IN ({self._key_list(keys)})"
            nullable = any(key.nullable for key in self.side.keys)
            every.append(f"({among}) IS NOT FALSE" if nullable else among)
        given = [f"({condition})" for condition in every if condition]
        return f" WHERE {' AND '.join(given)}" if given else ""

    def _hash_filter(self, chosen: str) -> str:
        every = [chosen] if chosen else []
        if self.in_flight and not self.side.keys:
            every.append(f"row_hash <> ALL ('{{{','.join(map(str, self.in_flight))}}}'::bigint[])")
        return f" WHERE {' AND '.join(every)}" if every else ""


def _is_hashed(ranges: Ranges) -> bool:
    return isinstance(ranges, HashRanges)


def _hash(row: str) -> str:
    """The first 64 bits of the digest, as an integer."""
    return f"('x' || md5({row}))::bit(64)::bigint"


def _portions(rows: Iterable[Sequence[str | None]]) -> Iterator[list[Sequence[str | None]]]:
    left = iter(rows)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _run(
    connection: SqlConnection, query: str, parameters: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query.encode(), parameters).fetchall()
    except psycopg.Error as exc:
        raise translate(exc) from exc
