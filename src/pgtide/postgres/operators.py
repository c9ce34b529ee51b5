"""Operators that keys are compared with: those of the type's own order, wherever they are.

Sessions have no search path. A type of an extension has no operators then, or is compared as the
type that it can pass for: citext as text, though ORDER BY still sorts it as citext.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from pgtide import oids
from pgtide.postgres.connection import SqlConnection


def operators_of(type_: str) -> str:
    """SQL: the schema of a type's operators; of a domain, those of what it is based on.

    NULL for a built-in type, whose operators need not be looked for.
    """
    return f"""
CASE WHEN {type_} >= {oids.FIRST_USER_OID} THEN (
    WITH RECURSIVE below AS (
        SELECT {type_} AS type
        UNION ALL
        SELECT t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.type
        WHERE t.typtype = 'd'
    )
    SELECT s.nspname FROM below
    JOIN pg_catalog.pg_opclass c ON c.opcintype = below.type AND c.opcdefault
    JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_amop p ON p.amopfamily = c.opcfamily AND p.amopstrategy = 3
     AND p.amoplefttype = c.opcintype AND p.amoprighttype = c.opcintype
    JOIN pg_catalog.pg_operator o ON o.oid = p.amopopr
    JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace
) END"""


def read_operators(conn: SqlConnection, types: Iterable[int]) -> dict[int, str]:
    """The schemas of the operators of types that have their own."""
    wanted = sorted({type_ for type_ in types if type_ >= oids.FIRST_USER_OID})
    if not wanted:
        return {}
    query = (
        f"SELECT t.oid::bigint, {operators_of('t.oid')} FROM pg_catalog.pg_type t"
        " WHERE t.oid = ANY (%s::oid[])"
    )
    found = conn.execute(query.encode(), [wanted]).fetchall()
    return {type_: schema for type_, schema in found if schema not in (None, "pg_catalog")}


def operator(schema: str | None, sign: str) -> str:
    """SQL: an operator of a schema, or the one that everybody has."""
    if schema is None:
        return sign
    return f"OPERATOR({sql.Identifier(schema).as_string(None)}.{sign})"
