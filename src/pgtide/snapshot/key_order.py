"""The order of a table's keys, as conditions: the same order that ORDER BY gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from psycopg import sql

from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.operators import operator, read_operators
from pgtide.shape import Column, Shape

Key: TypeAlias = tuple[str, ...]
KeyIdentity: TypeAlias = tuple[str, ...]


_COLLATIONS = """
SELECT attnum, attcollation::bigint FROM pg_catalog.pg_attribute
WHERE attrelid = %s::oid AND attnum = ANY (%s)
"""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The columns of a key, and where the operators of those are that have their own."""

    columns: tuple[Column, ...]
    schemas: tuple[str | None, ...]
    collations: tuple[int, ...]

    @classmethod
    def of(cls, conn: SqlConnection, shape: Shape) -> KeyOrder:
        """The order of a table's key."""
        columns = tuple(shape.columns[index] for index in shape.keys)
        schemas = read_operators(conn, (column.type_oid for column in columns))
        numbers = [column.attnum for column in columns]
        collations: dict[int | None, int] = dict(
            conn.execute(_COLLATIONS, [shape.oid, numbers]).fetchall()
        )
        return cls(
            columns,
            tuple(schemas.get(column.type_oid) for column in columns),
            tuple(collations.get(number, 0) for number in numbers),
        )

    @property
    def identity(self) -> KeyIdentity:
        """The same as long as keys mean the same and follow one another in the same order."""
        pairs = zip(self.columns, self.collations, strict=True)
        return tuple(f"{c.attnum}:{c.type_oid}:{collation}" for c, collation in pairs)

    def compared(self, sign: str, key: Sequence[str]) -> sql.Composable:
        """Keys that compare so with one, or with the beginning of one."""
        if not any(self.schemas[: len(key)]):
            names = self._names(len(key))
            return sql.SQL("{} {} {}").format(names, verbatim(sign), self._row(key))
        last = len(key) - 1
        ways = []
        for number in range(len(key)):
            equal = [self._compared(before, "=", key) for before in range(number)]
            here = self._compared(number, sign if number == last else sign.rstrip("="), key)
            ways.append(_all([*equal, here]))
        return _any(ways)

    def among(self, keys: Iterable[Key]) -> sql.Composable:
        """Certain keys."""
        if any(self.schemas):
            numbers = range(len(self.columns))
            return _any([_all([self._compared(n, "=", key) for n in numbers]) for key in keys])
        rows = sql.SQL(", ").join(map(self._row, keys))
        return sql.SQL("{} IN ({})").format(self._names(len(self.columns)), rows)

    def printed(self, conn: SqlConnection, keys: Sequence[Key]) -> list[Key]:
        """The same keys, or beginnings of keys, as the server prints them: as rows have them."""
        width = len(keys[0])
        names = [sql.Identifier(f"k{number}") for number in range(width)]
        # A type may be called by what is a placeholder here.
        types = [verbatim(column.type_name.replace("%", "%%")) for column in self.columns[:width]]
        query = sql.SQL("SELECT {} FROM ROWS FROM ({}) AS k({})").format(
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.format('%%s', {}::{})").format(name, kind)
                for name, kind in zip(names, types, strict=True)
            ),
            sql.SQL(", ").join([sql.SQL("unnest(%s::text[])")] * width),
            sql.SQL(", ").join(names),
        )
        texts = [[key[number] for key in keys] for number in range(width)]
        return conn.execute(query, texts).fetchall()

    def _compared(self, number: int, sign: str, key: Sequence[str]) -> sql.Composable:
        return sql.SQL("{} {} {}").format(
            sql.Identifier(self.columns[number].name),
            verbatim(operator(self.schemas[number], sign)),
            self._value(number, key[number]),
        )

    def _names(self, count: int) -> sql.Composed:
        names = [sql.Identifier(column.name) for column in self.columns[:count]]
        return sql.SQL("({})").format(sql.SQL(", ").join(names))

    def _row(self, key: Sequence[str]) -> sql.Composed:
        values = [self._value(number, text) for number, text in enumerate(key)]
        return sql.SQL("({})").format(sql.SQL(", ").join(values))

    def _value(self, number: int, text: str) -> sql.Composed:
        kind = verbatim(self.columns[number].type_name)
        return sql.SQL("{}::{}").format(sql.Literal(text), kind)


def verbatim(text: str) -> sql.SQL:
    """SQL that somebody else wrote, as it stands."""
    return sql.SQL(text)  # type: ignore[arg-type, unused-ignore]


def _all(conditions: Iterable[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" AND ").join(conditions))


def _any(conditions: Iterable[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(sql.SQL(" OR ").join(conditions))
