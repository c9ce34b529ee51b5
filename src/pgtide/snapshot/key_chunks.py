"""Chunks by key: parts of a table that can be read again at any time.

A chunk is read in one REPEATABLE READ transaction that first locks the table in ACCESS SHARE
mode and then takes its snapshot: TRUNCATE and rewrites do not care about snapshots, so they must
have ended before. Ranges exclude their low end and include their high end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import IsolationLevel, sql

from pgtide.errors import PrivilegeMissing, SourceError, SourceUnavailable, TableGone
from pgtide.log.schema import TEXT_LIST
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import SqlConnection, connect, translate
from pgtide.postgres.published import Published, read_published
from pgtide.postgres.visibility import Visibility
from pgtide.shape import Shape
from pgtide.snapshot.copying import copy_rows
from pgtide.snapshot.key_order import Key, KeyIdentity, KeyOrder, verbatim


class ChunkTooLarge(Exception):
    """A chunk has more bytes than fit: it is to be read in smaller parts."""


class NoKey(Exception):
    """A text that no key of the table has, by its place among those that were given."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class KeyChanged(Exception):
    """The table has another key by now, or its key another order: chunks mean nothing any more."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is read at once: a range of keys, or certain keys."""

    low: Key | None = None
    high: Key | None = None
    keys: tuple[Key, ...] | None = None
    rows: int = field(default=0, compare=False)  # about how many, of a range


@dataclass(frozen=True, slots=True)
class ReadRows:
    """The rows of a chunk, and which transactions they show."""

    shape: Shape  # the columns that were read, as the catalog described them to that snapshot
    rows: pa.Array[Any]  # lists of texts
    visibility: Visibility
    read_at: datetime


@dataclass(frozen=True, slots=True)
class Limits:
    """Which rows of the table are wanted at all."""

    where: str | None = None
    low: str | None = None  # of the first key column, both included
    high: str | None = None


@dataclass(slots=True)
class KeyedTable:
    """A relation, by its oid, read by key on a connection of its own."""

    url: str = field(repr=False)
    publications: tuple[str, ...]
    oid: int
    limits: Limits = Limits()
    key: KeyIdentity | None = None  # that chunks are of; None: whatever it has
    _conn: SqlConnection | None = None
    _published: Published | None = None

    def close(self) -> None:
        """Let the connection go."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    @property
    def conn(self) -> SqlConnection:
        """The connection, opened when it is needed."""
        if self._conn is None or self._conn.closed:
            self._conn = connect(self.url, application_name="pgtide refresh")
            # Rows that a policy would hide make the query fail instead.
            self._conn.execute("SET row_security = off")
            self._conn.execute("SET synchronous_commit = local")
            # Conditions may call anything; a watermark is no write to the server.
            self._conn.execute("SET default_transaction_read_only = on")
        return self._conn

    def layout(self) -> Shape:
        """The columns to read, with the key among them."""
        with self._translated():
            shape = read_layouts(self.conn, oid=self.oid).get(self.oid)
            if shape is None:
                raise TableGone("the table was dropped")
            if self._published is None:  # it cannot change while a capture runs
                self._published = read_published(self.conn, self.publications).of(self.oid)
            sent = self._published.of(shape)
            if not sent.keys:
                raise keyless(shape.name)
            return sent

    def boundary(self, low: Key | None, rows: int) -> Key | None:
        """The key of the last row of a chunk that begins behind ``low``; None: it is the last."""
        shape = self.layout()
        order = self._order(shape)
        # Under other names: ORDER BY would take the text of a column for the column.
        texts = [
            sql.SQL("{}::text AS {}").format(sql.Identifier(key.name), sql.Identifier(f"key {n}"))
            for n, key in enumerate(order.columns)
        ]
        query = sql.SQL("SELECT {} FROM ONLY {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1").format(
            sql.SQL(", ").join(texts),
            sql.Identifier(shape.schema, shape.table),
            self._condition(Chunk(low), order),
            sql.SQL(", ").join(sql.Identifier(key.name) for key in order.columns),
            sql.Literal(rows - 1),
        )
        with self._translated(), self._as_named(shape):
            return self.conn.execute(query).fetchone()

    def identity(self) -> KeyIdentity:
        """Of the key that the table has now."""
        return self._order(self.layout()).identity

    def printed(self, keys: Sequence[Key]) -> list[Key]:
        """Keys as rows have them; raises NoKey with the number of one that cannot be."""
        order = self._order(self.layout())
        with self._translated():
            try:
                return order.printed(self.conn, keys)
            except (psycopg.DataError, psycopg.IntegrityError):  # which a domain's checks raise
                if len(keys) == 1:
                    raise NoKey(0) from None
        half = len(keys) // 2
        self.printed(keys[:half])
        try:
            return self.printed(keys[half:])
        except NoKey as found:
            raise NoKey(half + found.number) from None

    def try_out(self, chunk: Chunk) -> None:
        """Have the server look at the query of a chunk, without running it."""
        shape = self.layout()
        query = sql.SQL("EXPLAIN SELECT FROM ONLY {} WHERE {}").format(
            sql.Identifier(shape.schema, shape.table), self._condition(chunk, self._order(shape))
        )
        with self._translated():
            self.conn.execute(query)

    def estimate(self) -> int | None:
        """About how many rows the relation has, None when nobody has counted."""
        query = "SELECT reltuples::bigint FROM pg_catalog.pg_class WHERE oid = %s"
        with self._translated():
            row = self.conn.execute(query, [self.oid]).fetchone()
        return row[0] if row and row[0] >= 0 else None

    def visibility(self) -> Visibility:
        """What a snapshot taken now would see."""
        with self._translated():
            row = self.conn.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        return Visibility.parse(row[0])

    def read(self, chunk: Chunk, most_bytes: int) -> ReadRows:
        """Read a chunk in a snapshot of its own."""
        before = self.layout()
        conn = self.conn
        conn.isolation_level, conn.read_only = IsolationLevel.REPEATABLE_READ, True
        try:
            with self._translated(), self._as_named(before), conn.transaction():
                lock = sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE")
                conn.execute(lock.format(sql.Identifier(before.schema, before.table)))
                return self._read_locked(chunk, before.name, most_bytes)
        finally:
            if not conn.closed:
                conn.isolation_level, conn.read_only = None, None

    def _read_locked(self, chunk: Chunk, locked: str, most_bytes: int) -> ReadRows:
        row = self.conn.execute(
            "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.transaction_timestamp()"
        ).fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        shape = self.layout()
        if shape.name != locked:
            raise SourceUnavailable("the table was renamed while it was to be locked")
        query = sql.SQL("SELECT {} FROM ONLY {} WHERE {}").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in shape.columns),
            sql.Identifier(shape.schema, shape.table),
            self._condition(chunk, self._order(shape)),
        )
        parts, size = [pa.array([], TEXT_LIST)], 0
        # Whoever leaves early ends the session: the thread that receives has to stop before.
        with closing(copy_rows(self.conn, query, len(shape.columns))) as copied:
            for part in copied:
                parts.append(part)
                size += part.nbytes
                if size > most_bytes:
                    raise ChunkTooLarge
        return ReadRows(shape, pa.concat_arrays(parts), Visibility.parse(row[0]), row[1])

    def _order(self, shape: Shape) -> KeyOrder:
        with self._translated():
            order = KeyOrder.of(self.conn, shape)
        if self.key not in (None, order.identity):
            raise KeyChanged
        return order

    def _condition(self, chunk: Chunk, order: KeyOrder) -> sql.Composable:
        assert self._published is not None, "the layout is read first"
        parts: list[sql.Composable] = []
        if chunk.keys is not None:
            parts.append(order.among(chunk.keys))
        if chunk.low is not None:
            parts.append(order.compared(">", chunk.low))
        if chunk.high is not None:
            parts.append(order.compared("<=", chunk.high))
        if self.limits.low is not None:
            parts.append(order.compared(">=", (self.limits.low,)))
        if self.limits.high is not None:
            parts.append(order.compared("<=", (self.limits.high,)))
        parts += [
            # Text of the user's own, or of the catalog's; a comment in it ends with its line.
            sql.SQL("({}\n)").format(verbatim(condition))
            for condition in (self.limits.where, self._published.row_filter)
            if condition is not None
        ]
        return sql.SQL(" AND ").join(parts) if parts else sql.SQL("true")

    @contextmanager
    def _as_named(self, shape: Shape) -> Iterator[None]:
        """Somebody may change names while we wait for the table: then others are to be used."""
        try:
            yield
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn,
                psycopg.errors.InvalidSchemaName) as exc:  # fmt: skip
            if self.layout() == shape:
                raise  # it is about something else, in the condition
            raise SourceUnavailable("the table was altered while it was to be read") from exc

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as exc:
            raise PrivilegeMissing(
                "the role that captures may not read the table",
                detail=f"{exc.diag.message_primary}.",
                hint="Grant SELECT on it to the role in source.url; of a table with row-level "
                "security that role must see every row (BYPASSRLS).",
            ) from exc
        except psycopg.Error as exc:
            raise translate(exc) from exc


def keyless(table: str) -> SourceError:
    """The refusal for a table whose rows nothing tells apart."""
    return SourceError(
        f"{table} has no key",
        detail="Rows that are read again could not be told from those that are there.",
        hint=f"Stop the capture, then run: pgtide snapshot --tables {table}",
    )
