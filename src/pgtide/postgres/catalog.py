"""What the catalog says: table layouts as shapes, and facts about the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pgtide.config.patterns import TablePatterns
from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Column, Shape

# Keys and identities follow the server's own rule: an index that is invalid or deferrable
# does not identify rows for replication. Roots are found in the tables of the catalog, because
# pg_partition_root() would look past an imported snapshot at the newest state.
_LAYOUTS = """
WITH RECURSIVE tree (oid, root) AS (
    SELECT oid, oid FROM pg_class WHERE relkind = 'p' AND NOT relispartition
    UNION ALL
    SELECT i.inhrelid, t.root FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
), below (oid, base, typmod) AS (
    SELECT oid, typbasetype, typtypmod FROM pg_type WHERE typtype = 'd'
    UNION ALL
    SELECT b.oid, t.typbasetype, t.typtypmod
    FROM below b JOIN pg_type t ON t.oid = b.base AND t.typtype = 'd'
), domains AS (
    SELECT b.* FROM below b JOIN pg_type t ON t.oid = b.base AND t.typtype <> 'd'
)
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text,
       r.oid::bigint, rn.nspname, r.relname,
       a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, format_type(a.atttypid, a.atttypmod),
       NOT a.attnotnull, coalesce(pk.usable AND a.attnum = ANY (pk.keys), false),
       CASE c.relreplident WHEN 'f' THEN true
                           WHEN 'd' THEN coalesce(pk.usable AND a.attnum = ANY (pk.keys), false)
                           WHEN 'i' THEN coalesce(a.attnum = ANY (ri.keys), false)
                           ELSE false END,
       a.attgenerated <> '',
       coalesce(d.base, 0)::bigint, coalesce(d.typmod, -1),
       coalesce(ed.base, e.oid, 0)::bigint
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN tree t ON t.oid = c.oid AND t.root <> c.oid
LEFT JOIN pg_class r ON r.oid = t.root
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
-- Virtual columns are computed by whoever asks for them; nobody sends them.
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated <> 'v'
LEFT JOIN domains d ON d.oid = a.atttypid
-- int2vector and other types with elements that are no arrays are no type's array type.
LEFT JOIN pg_type ty ON ty.oid = coalesce(d.base, a.atttypid)
LEFT JOIN pg_type e ON e.oid = ty.typelem AND e.typarray = ty.oid AND e.typdelim = ','
LEFT JOIN domains ed ON ed.oid = e.oid
LEFT JOIN LATERAL (
    SELECT (x.indkey::smallint[])[0:x.indnkeyatts - 1] AS keys,
           x.indisvalid AND x.indimmediate AS usable
    FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary
) pk ON true
LEFT JOIN LATERAL (
    SELECT (x.indkey::smallint[])[0:x.indnkeyatts - 1] AS keys
    FROM pg_index x WHERE x.indrelid = c.oid AND x.indisreplident AND x.indisvalid
) ri ON true
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgtide')
  AND (%(oid)s::oid IS NULL OR c.oid = %(oid)s::oid)
ORDER BY c.oid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Which server and database this is."""

    version: int
    """``server_version_num``, for example 160004."""
    system_identifier: str
    timeline: int
    database: str
    wal_level: str
    in_recovery: bool
    encoding: str

    @property
    def major(self) -> int:
        return self.version // 10_000


def read_server(conn: SqlConnection) -> ServerFacts:
    """Read the server's facts; the timeline is the one it writes, not the last checkpoint's."""
    row = _one(
        conn,
        """
        SELECT current_setting('server_version_num')::integer,
               (SELECT system_identifier::text FROM pg_control_system()),
               (SELECT timeline_id FROM pg_control_checkpoint()),
               current_database(), current_setting('wal_level'), pg_is_in_recovery(),
               current_setting('server_encoding')
        """,
    )
    facts = ServerFacts(*row)
    if facts.in_recovery:
        return facts
    (segment,) = _one(conn, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    return ServerFacts(facts.version, facts.system_identifier, int(segment[:8], 16), *row[3:])


def read_layouts(
    conn: SqlConnection, patterns: TablePatterns | None = None, *, oid: int | None = None
) -> dict[int, Shape]:
    """Every permanent table by oid, or those that ``patterns`` select, or the one of ``oid``.

    Generated columns are listed and marked; the caller leaves out those that
    the publication does not carry.
    """
    rows = conn.execute(_LAYOUTS, {"oid": oid})
    shapes = (_shape(list(group)) for _, group in groupby(rows, key=lambda row: row[0]))
    return {shape.oid: shape for shape in shapes if patterns is None or selects(patterns, shape)}


def selects(patterns: TablePatterns, shape: Shape) -> bool:
    """Whether a table is captured: a partition is by its own name or by its root's."""
    return patterns.matches(shape.schema, shape.table) or (
        shape.root_oid != 0 and patterns.matches(shape.root_schema, shape.root_table)
    )


def _shape(rows: list[tuple[Any, ...]]) -> Shape:
    oid, schema, table, identity, root_oid, root_schema, root_table = rows[0][:7]
    return Shape(
        oid=oid,
        schema=schema,
        table=table,
        columns=tuple(_columns(rows)),
        replica_identity=identity,
        root_oid=root_oid or 0,
        root_schema=root_schema or "",
        root_table=root_table or "",
    )


def _columns(rows: list[tuple[Any, ...]]) -> Iterator[Column]:
    for row in rows:
        attnum, name, type_oid, typmod, type_name, nullable, key, identity, generated = row[7:16]
        base_oid, base_typmod, element_oid = row[16:]
        if attnum is not None:  # a table may have no columns at all
            yield Column(
                name=name,
                type_oid=type_oid,
                typmod=typmod,
                type_name=type_name,
                attnum=attnum,
                nullable=nullable,
                key=key,
                identity=identity,
                generated=generated,
                base_oid=base_oid,
                base_typmod=base_typmod,
                element_oid=element_oid,
            )


def _one(conn: SqlConnection, query: str) -> tuple[Any, ...]:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row
