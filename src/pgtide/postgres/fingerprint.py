"""How publications look at one moment, to notice when someone else changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql

from pgtide.postgres.connection import SqlConnection


def fingerprint(conn: SqlConnection, names: Sequence[str]) -> dict[str, Any]:
    """Each publication that exists, by name, as JSON data."""
    version = conn.info.server_version
    row = conn.execute(sql.SQL("SELECT {}").format(fingerprint_sql(names, version))).fetchone()
    found: dict[str, Any] = row[0] if row else {}
    return found


def fingerprint_sql(names: Sequence[str], version: int) -> sql.Composed:
    """The same as an SQL expression, so that a script can record it too."""
    schemas = (
        "SELECT s.pnnspid AS oid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid"
        if version >= 150_000
        else "SELECT 0::oid AS oid WHERE false"
    )
    return sql.SQL(
        """(
    SELECT coalesce(jsonb_object_agg(p.pubname, jsonb_build_object(
        'oid', p.oid::bigint, 'all_tables', p.puballtables,
        'options', to_jsonb(p) - 'oid' - 'pubname' - 'pubowner' - 'puballtables',
        'schemas', (SELECT coalesce(jsonb_agg(n.oid::bigint ORDER BY n.oid), '[]')
                    FROM pg_namespace n WHERE n.oid IN ({schemas})),
        'schema_names', (SELECT coalesce(jsonb_agg(n.nspname ORDER BY n.nspname), '[]')
                         FROM pg_namespace n WHERE n.oid IN ({schemas})),
        'tables', (SELECT coalesce(jsonb_object_agg(r.prrelid::text, jsonb_strip_nulls(
                       jsonb_build_object('columns', to_jsonb(r) -> 'prattrs',
                                          'filter', to_jsonb(r) -> 'prqual'))), '{{}}')
                   FROM pg_publication_rel r WHERE r.prpubid = p.oid))), '{{}}')
    FROM pg_publication p WHERE p.pubname = ANY ({names}))"""
    ).format(schemas=sql.SQL(schemas), names=sql.Literal(list(names)))


def changes_since(conn: SqlConnection, recorded: Mapping[str, Any]) -> list[str]:
    """What differs from the recorded publications; empty when nothing does.

    Tables and schemas that were dropped have left by themselves and do not count.
    """
    found: list[str] = []
    current = fingerprint(conn, list(recorded))
    for name, before in recorded.items():
        now = current.get(name)
        if now is None:
            found.append(f"publication {name} is gone")
        elif now["oid"] != before["oid"]:
            found.append(f"publication {name} was dropped and created again")
        else:
            found += [f"publication {name}: {what}" for what in _differences(conn, before, now)]
    return found


def _differences(
    conn: SqlConnection, before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
    found = [
        f"{option} is now {now['options'].get(option)}"
        for option, value in before["options"].items()
        # An option that a newer release brings is not a change.
        if now["options"].get(option) != value
    ]
    if before["all_tables"] != now["all_tables"]:
        found.append("it no longer has the same scope")
    gone = {int(oid) for oid in before["tables"]} - {int(oid) for oid in now["tables"]}
    if left := _relations_that_exist(conn, gone):
        found.append(f"tables were removed: {', '.join(left)}")
    if now["tables"].keys() - before["tables"].keys():
        found.append("tables were added")
    if any(now["tables"].get(oid, facts) != facts for oid, facts in before["tables"].items()):
        found.append("column lists or row filters differ")
    if _schemas_that_exist(conn, before["schemas"]) != now["schemas"]:
        found.append("its schemas differ")
    return found


def _relations_that_exist(conn: SqlConnection, oids: set[int]) -> list[str]:
    rows = conn.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE oid = ANY(%s::oid[]) ORDER BY 1",
        [sorted(oids)],
    )
    return [name for (name,) in rows]


def _schemas_that_exist(conn: SqlConnection, oids: Sequence[int]) -> list[int]:
    rows = conn.execute(
        "SELECT oid::bigint FROM pg_namespace WHERE oid = ANY(%s::oid[]) ORDER BY 1", [list(oids)]
    )
    return [oid for (oid,) in rows]
