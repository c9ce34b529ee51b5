"""Where the source has a table's rows: the relation itself, or its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.publication import insert_name
from pgtide.postgres.published import read_published
from pgtide.shape import Shape

SEGMENT_PAGES = 2_048  # that are read at once, at least
MOST_SEGMENTS = 256  # of a relation

_FACTS = """
SELECT c.oid::bigint, c.relkind::text, c.reltuples::bigint,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint
FROM pg_class c WHERE c.oid = ANY (%s::oid[])
"""
_PUBLISHED = """
SELECT t.schemaname, t.tablename,
       bool_or(p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate)
FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
WHERE t.pubname = ANY (%s) GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that holds rows."""

    name: str  # quoted
    oid: int
    pages: int
    rows: int  # estimated
    condition: str = ""  # the publication's row filter
    refused: str = ""  # why its rows cannot be compared

    def segments(self) -> list[str]:
        """Conditions that cut it into parts by place; the last one has no end."""
        step = max(SEGMENT_PAGES, -(-self.pages // MOST_SEGMENTS))
        starts = list(range(0, max(self.pages, 1), step))
        conditions = []
        for start in starts:
            end = "" if start == starts[-1] else f" AND ctid < '({start + step},0)'::tid"
            conditions.append(f"ctid >= '({start},0)'::tid{end}")
        return conditions


def quoted_name(shape: Shape) -> str:
    return sql.Identifier(shape.schema, shape.table).as_string(None)


def read_relations(
    connection: SqlConnection, slot: str, layouts: Mapping[int, Shape], roots: Sequence[Shape]
) -> dict[int, tuple[Relation, ...]]:
    """Of each table, by oid, the relations that hold its rows."""
    members = {
        root.oid: [root, *(s for s in layouts.values() if s.root_oid == root.oid)] for root in roots
    }
    wanted = [shape.oid for shapes in members.values() for shape in shapes]
    facts = {oid: rest for oid, *rest in connection.execute(_FACTS, [wanted])}
    names = [slot, insert_name(slot)]
    whole = {(row[0], row[1]): row[2] for row in connection.execute(_PUBLISHED, [names])}
    sent = read_published(connection, names)
    found = {}
    for root, shapes in members.items():
        holding = [shape for shape in shapes if facts.get(shape.oid, ["p"])[0] == "r"]
        found[root] = tuple(
            replace(
                _relation(shape, facts[shape.oid], whole.get((shape.schema, shape.table))),
                condition=sent.of(shape.oid).row_filter or "",
            )
            for shape in holding
        )
    return found


def holding(
    connection: SqlConnection, layouts: Mapping[int, Shape], root: Shape
) -> tuple[Relation, ...]:
    """The relations that hold a table's rows, whatever is published of them."""
    shapes = [root, *(s for s in layouts.values() if s.root_oid == root.oid)]
    facts = {oid: rest for oid, *rest in connection.execute(_FACTS, [[s.oid for s in shapes]])}
    return tuple(
        _relation(shape, facts[shape.oid], whole=True)
        for shape in shapes
        if facts.get(shape.oid, ["p"])[0] == "r"
    )


def _relation(shape: Shape, facts: list[Any], whole: bool | None) -> Relation:
    """``whole``: whether every kind of change is published; None: nothing is."""
    _, rows, pages = facts
    refused = ""
    if whole is None:
        refused = f"{shape.name} is not in the publication"
    elif not whole:
        refused = f"updates and deletes of {shape.name} are not captured"
    return Relation(
        name=quoted_name(shape),
        oid=shape.oid,
        pages=pages,
        # Never analysed: about a hundred rows a page.
        rows=rows if rows > 0 else pages * 100,
        refused=refused,
    )
