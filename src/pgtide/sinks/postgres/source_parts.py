"""What of a source's schema a target gets: the tables of a pipeline, and all that they stand on.

Two walks over ``pg_depend``. The first goes from the selected tables, and from schemas without any
that the patterns mean (of views, of functions), to what they need and what is part of them, schema
by schema: that gives schemas and extensions. The second goes from the tables
that are *not* selected to whatever needs those (views, foreign keys, functions over their rows):
that cannot be made, is left out, and is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pgtide.config.patterns import OWN_SCHEMA, TablePatterns, is_system_schema
from pgtide.errors import ConfigError
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import SqlConnection

_RELATIONS = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       (SELECT coalesce(array_agg(i.inhparent::bigint), '{}') FROM pg_inherits i
        WHERE i.inhrelid = c.oid AND c.relispartition)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                  AND d.objid = c.oid AND d.deptype = 'e')
"""

# Publications link tables that have nothing else to do with one another.
_UNRELATED = """
array_remove(ARRAY[to_regclass('pg_publication'), to_regclass('pg_publication_rel'),
                   to_regclass('pg_publication_namespace')]::oid[], NULL)
"""

# Of a member of an extension only the extension counts.
_REACHED = f"""
WITH RECURSIVE member AS MATERIALIZED (
    SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
), reached (classid, objid) AS (
    SELECT 'pg_class'::regclass::oid, selected FROM unnest(%(selected)s::oid[]) selected
    UNION ALL
    SELECT 'pg_namespace'::regclass::oid, meant FROM unnest(%(schemas)s::oid[]) meant
    UNION
    SELECT next.classid, next.objid
    FROM (SELECT r.*, m.objid IS NOT NULL AS is_member
          FROM reached r LEFT JOIN member m USING (classid, objid)) r
    CROSS JOIN LATERAL (
        SELECT d.refclassid, d.refobjid FROM pg_depend d
        WHERE d.classid = r.classid AND d.objid = r.objid AND (d.deptype = 'e' OR NOT r.is_member)
        UNION ALL
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = r.classid AND d.refobjid = r.objid AND NOT r.is_member
          AND r.classid <> 'pg_extension'::regclass
          AND (d.deptype IN ('a', 'i', 'P', 'S') OR (r.classid = 'pg_namespace'::regclass
               AND d.classid <> 'pg_extension'::regclass AND NOT EXISTS (SELECT FROM member m
                               WHERE m.classid = d.classid AND m.objid = d.objid)))
    ) next (classid, objid)
    WHERE next.classid <> ALL ({_UNRELATED})
      AND NOT (next.classid = 'pg_class'::regclass AND next.objid = ANY (%(others)s::oid[]))
)
SELECT 'schema', n.nspname FROM reached r JOIN pg_namespace n ON n.oid = r.objid
WHERE r.classid = 'pg_namespace'::regclass
UNION ALL
SELECT 'extension', e.extname FROM reached r JOIN pg_extension e ON e.oid = r.objid
WHERE r.classid = 'pg_extension'::regclass
UNION ALL
SELECT 'cast', format('CAST (%%s AS %%s)', format_type(c.castsource, NULL),
                      format_type(c.casttarget, NULL))
FROM pg_cast c WHERE c.oid >= 16384
  AND NOT EXISTS (SELECT FROM member m WHERE m.classid = 'pg_cast'::regclass AND m.objid = c.oid)
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_cast'::regclass
                  AND d.objid = c.oid AND NOT EXISTS (SELECT FROM reached r
                      WHERE r.classid = d.refclassid AND r.objid = d.refobjid))
"""

_GONE = f"""
WITH RECURSIVE gone (classid, objid) AS (
    SELECT 'pg_class'::regclass::oid, other FROM unnest(%(others)s::oid[]) other
    UNION
    SELECT next.classid, next.objid FROM gone g CROSS JOIN LATERAL (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = g.classid AND d.refobjid = g.objid AND d.deptype <> 'e'
        UNION ALL  -- a view goes with the rule that is its query
        SELECT d.refclassid, d.refobjid FROM pg_depend d
        WHERE d.classid = g.classid AND d.objid = g.objid AND d.deptype = 'i'
          AND g.classid = 'pg_rewrite'::regclass
    ) next (classid, objid)
    WHERE next.classid <> ALL ({_UNRELATED})
      AND NOT (next.classid = 'pg_class'::regclass AND next.objid = ANY (%(selected)s::oid[]))
)
"""

# Type and name as pg_dump writes them at the head of an entry.
_LEFT_OUT = f"""{_GONE}, relation AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
), made AS (  -- what goes with its table needs no mention
    SELECT * FROM relation r WHERE NOT EXISTS (
        SELECT FROM gone WHERE classid = 'pg_class'::regclass AND objid = r.oid)
)
SELECT CASE r.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                      ELSE 'SEQUENCE' END, r.nspname, r.relname
FROM gone JOIN relation r ON classid = 'pg_class'::regclass AND objid = r.oid
WHERE r.relkind IN ('v', 'm', 'S')
UNION ALL
SELECT 'INDEX', r.nspname, r.relname
FROM gone JOIN relation r ON classid = 'pg_class'::regclass AND objid = r.oid
JOIN pg_index i ON i.indexrelid = r.oid JOIN made m ON m.oid = i.indrelid
UNION ALL
SELECT CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
       n.nspname, p.proname || '(' || oidvectortypes(p.proargtypes) || ')'
FROM gone JOIN pg_proc p ON classid = 'pg_proc'::regclass AND objid = p.oid
JOIN pg_namespace n ON n.oid = p.pronamespace
UNION ALL
SELECT CASE c.contype WHEN 'f' THEN 'FK CONSTRAINT' WHEN 'c' THEN 'CHECK CONSTRAINT'
                      ELSE 'CONSTRAINT' END, m.nspname, m.relname || ' ' || c.conname
FROM gone JOIN pg_constraint c ON classid = 'pg_constraint'::regclass AND objid = c.oid
JOIN made m ON m.oid = c.conrelid
UNION ALL
SELECT 'RULE', m.nspname, m.relname || ' ' || w.rulename
FROM gone JOIN pg_rewrite w ON classid = 'pg_rewrite'::regclass AND objid = w.oid
JOIN made m ON m.oid = w.ev_class
UNION ALL
SELECT 'DEFAULT', m.nspname, m.relname || ' ' || a.attname
FROM gone JOIN pg_attrdef f ON classid = 'pg_attrdef'::regclass AND objid = f.oid
JOIN made m ON m.oid = f.adrelid
JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
UNION ALL
SELECT 'POLICY', m.nspname, m.relname || ' ' || p.polname
FROM gone JOIN pg_policy p ON classid = 'pg_policy'::regclass AND objid = p.oid
JOIN made m ON m.oid = p.polrelid
UNION ALL
SELECT 'TRIGGER', m.nspname, m.relname || ' ' || t.tgname
FROM gone JOIN pg_trigger t ON classid = 'pg_trigger'::regclass AND objid = t.oid
JOIN made m ON m.oid = t.tgrelid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'TABLE ATTACH', m.nspname, m.relname
FROM pg_inherits i JOIN made m ON m.oid = i.inhrelid
JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
WHERE i.inhrelid = ANY (%(selected)s::oid[]) AND i.inhparent = ANY (%(others)s::oid[])
UNION ALL
SELECT 'TYPE', n.nspname, t.typname
FROM gone JOIN pg_type t ON classid = 'pg_type'::regclass AND objid = t.oid
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typtype IN ('d', 'r') OR c.relkind = 'c'
ORDER BY 2, 3, 1
"""

# A table cannot be made without the type of a column, or without its parent.
_IMPOSSIBLE = f"""{_GONE}
SELECT DISTINCT d.objid::regclass::text
FROM gone g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
JOIN pg_class c ON c.oid = d.objid
WHERE d.classid = 'pg_class'::regclass AND d.objid = ANY (%(selected)s::oid[])
  AND (g.classid = 'pg_type'::regclass AND d.objsubid > 0
       OR g.classid = 'pg_class'::regclass AND d.objsubid = 0 AND NOT c.relispartition
          AND EXISTS (SELECT FROM pg_inherits i
                      WHERE i.inhrelid = d.objid AND i.inhparent = g.objid))
ORDER BY 1
"""
_SCHEMAS = "SELECT nspname FROM pg_namespace"
# Not those of extensions, which make them.
_VIEWS = """
SELECT n.oid::bigint, n.nspname, ARRAY (
    SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind IN ('v', 'm'))
FROM pg_namespace n WHERE NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_namespace'::regclass AND d.objid = n.oid
    AND d.deptype = 'e')
"""
_POPULATED = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' AND c.relispopulated
"""
_RELATION_TYPES = ("VIEW", "MATERIALIZED VIEW", "SEQUENCE")


@dataclass(frozen=True)
class SourceParts:
    """What is copied of a schema, and what is not; names as pg_dump writes them."""

    tables: frozenset[tuple[str, str]]
    schemas: frozenset[str]
    other_schemas: tuple[str, ...]
    other_relations: tuple[tuple[str, str], ...]  # of the schemas that are copied
    extensions: frozenset[str]  # that the tables need
    casts: frozenset[str]
    populated: frozenset[tuple[str, str]]  # materialized views that have rows
    left_out: frozenset[tuple[str, str, str]] = field(default_factory=frozenset)

    @property
    def notes(self) -> list[str]:
        """What is left out though its schema is copied, for people."""
        return [
            f"{kind.lower()} {schema}.{name}, which needs a table that is not selected"
            for kind, schema, name in sorted(self.left_out, key=lambda part: part[1:])
            if schema in self.schemas and kind != "SEQUENCE"
        ]


def read_parts(
    conn: SqlConnection, selected: Collection[int], patterns: Iterable[TablePatterns]
) -> SourceParts:
    """Look at the source as the session's transaction sees it.

    ``selected``: oids of the tables whose rows are copied. Partitioned tables above and partitions
    below them, and unlogged tables that ``patterns`` mean, are made as well.
    """
    patterns = list(patterns)
    relations = {row[0]: row for row in conn.execute(_RELATIONS)}
    made = _with_relatives(conn, relations, selected, patterns)
    oids = {"selected": sorted(made), "others": sorted(relations.keys() - made)}
    oids["schemas"] = _meant_schemas(conn, patterns)
    if impossible := [name for (name,) in conn.execute(_IMPOSSIBLE, oids)]:
        raise ConfigError(
            "a table cannot be made without another that is not selected",
            detail=f"{', '.join(impossible)}: its parent, or the type of a column, is not there.",
            hint="Select that table as well: source.tables and the pipeline's tables.",
        )
    reached: dict[str, set[str]] = {"schema": set(), "extension": set(), "cast": set()}
    for kind, name in conn.execute(_REACHED, oids):
        reached[kind].add(name)
    left_out = frozenset(
        (kind, schema, name) for kind, schema, name in conn.execute(_LEFT_OUT, oids)
    )
    schemas = frozenset(name for name in reached["schema"] if not is_system_schema(name))
    every = {name for (name,) in conn.execute(_SCHEMAS)}
    others = [relations[oid][1:3] for oid in oids["others"]]
    others += [(schema, name) for kind, schema, name in left_out if kind in _RELATION_TYPES]
    return SourceParts(
        tables=frozenset((relations[oid][1], relations[oid][2]) for oid in made),
        schemas=schemas,
        # Postgres's own are left out by pg_dump itself.
        other_schemas=tuple(sorted((every - schemas - _system(every)) | {OWN_SCHEMA} & every)),
        other_relations=tuple(sorted((s, t) for s, t in others if s in schemas)),
        extensions=frozenset(reached["extension"]),
        casts=frozenset(reached["cast"]),
        populated=frozenset((schema, name) for schema, name in conn.execute(_POPULATED)),
        left_out=left_out,
    )


def _meant_schemas(conn: SqlConnection, patterns: list[TablePatterns]) -> list[int]:
    """Those in which the patterns mean a view, or a table of any name: DDL there is replayed."""
    return [
        oid
        for oid, schema, views in conn.execute(_VIEWS)
        if any(all(each.matches(schema, name) for each in patterns) for name in (*views, ""))
    ]


def _system(schemas: Iterable[str]) -> set[str]:
    return {name for name in schemas if is_system_schema(name)}


def _with_relatives(
    conn: SqlConnection,
    relations: dict[int, tuple[Any, ...]],
    selected: Collection[int],
    patterns: list[TablePatterns],
) -> set[int]:
    made = {oid for oid in selected if oid in relations}
    layouts = read_layouts(conn)
    for oid, schema, table, kind, persistence, _ in relations.values():
        if kind == "p" and oid in layouts and all(selects(each, layouts[oid]) for each in patterns):
            made.add(oid)
        if persistence == "u" and all(each.matches(schema, table) for each in patterns):
            made.add(oid)
    below = {oid: row[5] for oid, row in relations.items() if row[5] and row[3] != "f"}
    while more := {oid for oid, parents in below.items() if made & set(parents)} - made:
        made |= more
    return made
