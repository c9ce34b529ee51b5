"""The lake against the source: counts and checksums of each table, computed alike.

The source is read with psycopg and the lake with delta-rs, so neither side has seen pgtide's
own types or a JVM. Rows become Python values, and those become text in one way for both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql

from pgtide.demo.workload import TABLES
from pgtide.postgres.connection import connect

OWN = "_pgtide_"  # how the names of columns begin that a mirror has besides the source's

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    rows: int
    checksum: str


@dataclass(frozen=True)
class Compared:
    """A table at the source and in the lake."""

    table: str
    source: Side
    lake: Side

    @property
    def equal(self) -> bool:
        return self.source == self.lake


def compare(url: str, lake: Path) -> list[Compared]:
    """Every table of the shop, on both sides."""
    with connect(url, application_name="pgtide demo") as connection:
        return [
            Compared(
                name,
                _side(_source_rows(connection, name)),
                _side(query(mirror(lake, name), "SELECT * FROM t")),
            )
            for name in TABLES
        ]


def mirror(lake: Path, table: str) -> Path:
    """Where a table's mirror is."""
    return lake / "public" / table


def query(table: Path, statement: str) -> Rows:
    """What SQL says about a Delta table, which it calls ``t``; nothing if there is no table."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute(statement)
    return pa.table(found.read_all()).to_pylist()


def show(table: Path) -> Rows:
    """The rows of a small mirror by key; its own columns last."""
    rows = query(table, "SELECT * FROM t ORDER BY id")
    return [dict(sorted(row.items(), key=lambda item: item[0].startswith(OWN))) for row in rows]


def _source_rows(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> Rows:
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier("public", table)))
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _side(rows: Rows) -> Side:
    texts = sorted(_text(row) for row in rows)
    return Side(len(rows), hashlib.md5("\n".join(texts).encode()).hexdigest())


def _text(row: dict[str, Any]) -> str:
    return repr(_values((name, row[name]) for name in sorted(row) if not name.startswith(OWN)))


def _values(items: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Names and values; a moment is the same in every time zone."""
    return [
        (name, value.astimezone(UTC) if isinstance(value, datetime) else value)
        for name, value in items
    ]
