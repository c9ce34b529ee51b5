"""Which tables a copy reads, and what of them: exactly what the publication would send.

A table is read if the patterns select it and a publication of the slot carries it. Only
published columns and rows that pass the row filter are read. Partitions and inheritance
children are tables of their own; where a publication sends partitions as their root, they are
read one by one and told as rows of the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from pgtide.config.patterns import TablePatterns
from pgtide.errors import PrivilegeMissing
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.published import read_published
from pgtide.postgres.references import parents_first, read_references
from pgtide.shape import Shape

SHOWN = 10  # tables that an error names

_PUBLISHED = """
SELECT c.oid::bigint
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = ANY (%s)
"""

# As of the transaction's snapshot, unlike pg_partition_tree().
_LEAVES = """
WITH RECURSIVE tree (root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t
    JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = t.oid
)
SELECT t.root::bigint, c.oid::bigint, n.nspname, c.relname, coalesce(a.amname = 'heap', false),
       row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT'),
       has_schema_privilege(n.oid, 'USAGE')
FROM tree t
JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_am a ON a.oid = c.relam
ORDER BY 1, 2
"""

_OTHERS = """
SELECT n.nspname, c.relname,
       CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                      WHEN 'f' THEN 'foreign table' ELSE 'unlogged table' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('v', 'm', 'f') OR c.relkind = 'r' AND c.relpersistence = 'u'
ORDER BY 1, 2
"""
_PARTITIONED = "SELECT oid::bigint FROM pg_class WHERE relkind = 'p'"


@dataclass(frozen=True, slots=True)
class Heap:
    """One table of the server's, as it is read; ``by_page``: its rows can be found by page."""

    oid: int
    schema: str
    table: str
    by_page: bool

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Copied:
    """A table as the log knows it, and where its rows are."""

    shape: Shape
    heaps: tuple[Heap, ...]
    row_filter: str | None = None
    where: str | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        """What a row has to satisfy, as SQL."""
        return tuple(text for text in (self.row_filter, self.where) if text is not None)


@dataclass(frozen=True, slots=True)
class Selection:
    """The tables of a snapshot, and what was left out of it and why."""

    tables: tuple[Copied, ...]
    layouts: tuple[Shape, ...]  # of selected tables that are not read, partitioned ones above all
    left_out: tuple[str, ...]

    @property
    def heaps(self) -> dict[int, Heap]:
        """What is read, by oid."""
        return {heap.oid: heap for table in self.tables for heap in table.heaps}


def select_tables(
    conn: SqlConnection,
    publications: Sequence[str],
    patterns: Sequence[TablePatterns],
    where: Mapping[str, str],
) -> Selection:
    """The tables that all ``patterns`` select, as the session's transaction sees them.

    ``where``: SQL conditions by name of a table, its own or its root's.
    """
    published = {oid for (oid,) in conn.execute(_PUBLISHED, [list(publications)])}
    sent = read_published(conn, publications)
    chosen: list[Copied] = []
    others: list[Shape] = []
    layouts = read_layouts(conn)
    for oid, shape in layouts.items():
        if not all(selects(each, shape) for each in patterns):
            continue
        if oid in published:
            part = sent.of(oid)
            condition = where.get(shape.name) or where.get(
                f"{shape.root_schema}.{shape.root_table}"
            )
            chosen.append(Copied(part.of(shape), (), part.row_filter, condition))
        else:
            others.append(shape)
    tables = _parents_first(conn, _with_heaps(conn, chosen))
    read = {heap.name for table in tables for heap in table.heaps}
    # They have no rows; of those below them each is looked at.
    partitioned = {oid for (oid,) in conn.execute(_PARTITIONED)}
    left_out = [
        f"table {shape.name}, which is not published"
        for shape in others
        if shape.oid not in partitioned and shape.name not in read
    ]
    for schema, table, kind in conn.execute(_OTHERS):
        if all(each.matches(schema, table) for each in patterns):
            left_out.append(f"{kind} {schema}.{table}")
    return Selection(tuple(tables), tuple(others), tuple(left_out))


def _parents_first(conn: SqlConnection, tables: Sequence[Copied]) -> list[Copied]:
    """The tables in the order in which a target with foreign keys can take them, part by part."""
    family = {table.shape.oid: table.shape.home for table in tables}
    family |= {root: root for root in family.values()}
    references = [
        (family[child], family[parent])
        for child, parent in read_references(conn, list(family))
        if family[child] != family[parent]
    ]
    place = {oid: n for n, oid in enumerate(parents_first(family.values(), references))}
    return sorted(tables, key=lambda table: place[family[table.shape.oid]])


def _with_heaps(conn: SqlConnection, tables: Sequence[Copied]) -> list[Copied]:
    """Where the rows are; raises if the role may not read all of them."""
    oids = [table.shape.oid for table in tables]
    heaps: dict[int, list[Heap]] = {}
    closed: dict[str, list[Any]] = {"rls": [], "select": [], "usage": []}
    for root, oid, schema, table, by_page, secured, may_select, may_use in conn.execute(
        _LEAVES, {"oids": oids}
    ):
        heap = Heap(oid, schema, table, by_page)
        heaps.setdefault(root, []).append(heap)
        if not may_use and schema not in closed["usage"]:
            closed["usage"].append(schema)
        if not may_select:
            closed["select"].append(heap)
        elif secured:
            closed["rls"].append(heap)
    _refuse_unreadable(conn, closed)
    return [
        replace(table, heaps=tuple(heaps[table.shape.oid]))
        for table in tables
        if table.shape.oid in heaps
    ]


def _refuse_unreadable(conn: SqlConnection, closed: Mapping[str, list[Any]]) -> None:
    role = sql.Identifier(conn.info.user)
    grants = []
    if closed["usage"]:
        schemas = sql.SQL(", ").join(map(sql.Identifier, closed["usage"]))
        grants.append(sql.SQL("GRANT USAGE ON SCHEMA {} TO {};").format(schemas, role))
    if closed["select"]:
        names = sql.SQL(", ").join(sql.Identifier(h.schema, h.table) for h in closed["select"])
        grants.append(sql.SQL("GRANT SELECT ON TABLE {} TO {};").format(names, role))
    if grants:
        raise PrivilegeMissing(
            "the role may not read every table",
            detail=f"It cannot read {_listed(closed['select'])}."
            if closed["select"]
            else f"It cannot use schema {', '.join(closed['usage'])}.",
            hint="As the owner of the tables run: "
            + " ".join(grant.as_string(None) for grant in grants),
        )
    if closed["rls"]:
        raise PrivilegeMissing(
            "row-level security would hide rows from the role",
            detail=f"It applies to {_listed(closed['rls'])}; a part of a table is no snapshot.",
            hint="As a superuser run: "
            + sql.SQL("ALTER ROLE {} BYPASSRLS;").format(role).as_string(None),
        )


def _listed(heaps: Iterable[Heap]) -> str:
    names = [heap.name for heap in heaps]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
