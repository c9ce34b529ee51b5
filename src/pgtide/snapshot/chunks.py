"""Chunks: ranges of pages, and which of them are read together.

The size of a table comes from its file, never from statistics, which may be absent or years
old. The last range has no end, so rows in pages that were added meanwhile are not missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgtide.postgres.connection import SqlConnection
from pgtide.snapshot.tables import Copied, Heap, Selection

# Small tables that one task reads one after the other: each costs a round trip, the task more.
UNIT_CHUNKS = 64
FIRST_SEQ_BITS = 32  # of a position's index: the rows of a chunk; above them its number


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some pages of one table, and as what their rows are logged."""

    number: int
    heap: Heap
    schema: str
    table: str
    shape: int
    columns: tuple[str, ...]
    conditions: tuple[str, ...]
    first_page: int | None  # None: the whole table, not by page
    end_page: int | None  # None: no end
    bytes: int

    @property
    def seq(self) -> int:
        """The index of its first row at the snapshot's position."""
        return self.number << FIRST_SEQ_BITS

    def query(self) -> sql.Composed:
        """The SELECT that reads it."""
        conditions: list[sql.Composable] = []
        if self.first_page is not None:
            first = sql.Literal(f"({self.first_page},0)")
            conditions.append(sql.SQL("ctid >= {}::tid").format(first))
        if self.end_page is not None:
            end = sql.Literal(f"({self.end_page},0)")
            conditions.append(sql.SQL("ctid < {}::tid").format(end))
        conditions += [sql.SQL("({})").format(Verbatim(text)) for text in self.conditions]
        where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions))
        return sql.SQL("SELECT {} FROM ONLY {}{}").format(
            sql.SQL(", ").join(map(sql.Identifier, self.columns)),
            sql.Identifier(self.heap.schema, self.heap.table),
            where if conditions else sql.SQL(""),
        )


class Verbatim(sql.Composable):
    """SQL that comes as text from the catalog or the user."""

    def as_bytes(self, context: object = None) -> bytes:
        return f"{self._obj}\n".encode()  # a comment in it ends here


def plan_chunks(
    conn: SqlConnection, selection: Selection, chunk_bytes: int, *, tasks: int, first: int
) -> list[Chunk]:
    """Every table as chunks, numbered from ``first`` on; shapes have their ids.

    ``tasks``: how many read at a time.
    """
    row = conn.execute("SELECT current_setting('block_size')::int").fetchone()
    assert row is not None
    page_bytes: int = row[0]
    sizes = _sizes(conn, list(selection.heaps))
    chunks: list[Chunk] = []
    for table in selection.tables:
        for heap in table.heaps:
            pages = -(-sizes.get(heap.oid, 0) // page_bytes)
            step = even_step(pages, max(1, chunk_bytes // page_bytes), tasks)
            for begin, end, size in _ranges(heap, pages, step):
                number = first + len(chunks)
                chunks.append(_chunk(number, table, heap, begin, end, size * page_bytes))
    return chunks


def _sizes(conn: SqlConnection, oids: Sequence[int]) -> dict[int, int]:
    rows = conn.execute(
        "SELECT oid::bigint, pg_relation_size(oid) FROM unnest(%s::oid[]) AS oid", [list(oids)]
    )
    return {oid: size for oid, size in rows if size is not None}


def even_step(pages: int, most: int, tasks: int) -> int:
    """Pages to a chunk, at most so many: all alike, and as many chunks for each of the tasks.

    Else some would have nothing to do while others read what is left. A chunk is never so small
    that two of them are read together.
    """
    count = max(1, -(-pages // most))
    if count > tasks:
        count = -(-count // tasks) * tasks
    return max(1, -(-pages // count))


def _ranges(heap: Heap, pages: int, step: int) -> Iterator[tuple[int | None, int | None, int]]:
    """First page, end and number of pages."""
    if not heap.by_page:
        yield None, None, pages
        return
    # Without pages there is no row that anybody can see.
    for begin in range(0, pages, step):
        last = begin + step >= pages
        yield begin, None if last else begin + step, min(step, pages - begin)


def _chunk(
    number: int, table: Copied, heap: Heap, begin: int | None, end: int | None, size: int
) -> Chunk:
    shape = table.shape
    return Chunk(
        number=number,
        heap=heap,
        schema=shape.schema,
        table=shape.table,
        shape=shape.id,
        columns=tuple(column.name for column in shape.columns),
        conditions=table.conditions,
        first_page=begin,
        end_page=end,
        bytes=size,
    )


def units(chunks: Sequence[Chunk], unit_bytes: int) -> list[list[Chunk]]:
    """Chunks that one task reads, in order: a large one, or several small ones."""
    found: list[list[Chunk]] = []
    size = 0
    for chunk in chunks:
        if not found or len(found[-1]) >= UNIT_CHUNKS or size + chunk.bytes > unit_bytes:
            found.append([])
            size = 0
        found[-1].append(chunk)
        size += chunk.bytes
    return found
