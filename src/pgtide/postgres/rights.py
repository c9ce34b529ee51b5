"""What a role may do, asked of the server itself.

Managed servers hand out single superuser rights in ways of their own, so where
an attribute does not settle the question the statement is tried and undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgtide.postgres.connection import SqlConnection

RDS_REPLICATION = "rds_replication"
"""On RDS and Aurora the right to replicate is membership in this role."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """A role's attributes, as far as capturing needs them."""

    name: str
    superuser: bool
    replication: bool
    rds: bool

    @property
    def grant_replication(self) -> str:
        """The statement that lets the role replicate."""
        role = sql.Identifier(self.name)
        template = "GRANT rds_replication TO {}" if self.rds else "ALTER ROLE {} REPLICATION"
        return sql.SQL(template).format(role).as_string(None)


class _Undo(Exception):
    """Ends a probe's transaction without keeping anything."""


def read_role(conn: SqlConnection, name: str | None = None) -> RoleFacts:
    """The facts of a role, of the current one by default."""
    row = conn.execute(
        """
        SELECT r.rolname, r.rolsuper,
               r.rolsuper OR r.rolreplication
                   OR coalesce(pg_has_role(r.oid, m.oid, 'USAGE'), false),
               m.oid IS NOT NULL
        FROM pg_roles r LEFT JOIN pg_roles m ON m.rolname = %s
        WHERE r.rolname = coalesce(%s, current_user)
        """,
        [RDS_REPLICATION, name],
    ).fetchone()
    assert row is not None, "the role of an open session exists"
    return RoleFacts(*row)


def may_create_event_trigger(conn: SqlConnection) -> bool:
    """Whether the current role may create event triggers."""
    return _probe(
        conn,
        "CREATE FUNCTION pg_temp.pgtide_probe() RETURNS event_trigger LANGUAGE plpgsql"
        " AS 'BEGIN END'",
        "CREATE EVENT TRIGGER pgtide_probe ON ddl_command_end"
        " EXECUTE FUNCTION pg_temp.pgtide_probe()",
    )


def may_publish_everything(conn: SqlConnection) -> bool:
    """Whether the current role may create a publication FOR ALL TABLES."""
    return _probe(conn, "CREATE PUBLICATION pgtide_probe FOR ALL TABLES")


def _probe(conn: SqlConnection, *statements: str) -> bool:
    if read_role(conn).superuser:
        return True
    try:
        with conn.transaction():
            for statement in statements:
                conn.execute(statement.encode())
            raise _Undo
    except _Undo:
        return True
    except psycopg.errors.InsufficientPrivilege:
        return False
