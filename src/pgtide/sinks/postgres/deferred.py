"""Constraints that look when a transaction ends: which event is it that they refuse?

What a deferred constraint has to look at waits in a queue, in the order of the events. So does what
a trigger of ours has to: before each event a row goes into ``pgtide.checks``, and the trigger says
that what follows is about this event. It says so by sequences, which no rollback takes back, and of
which each session sees its own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgtide.errors import PgtideError
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection

_DEFERRABLE = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint
               WHERE condeferrable AND connamespace <> 'pgtide'::regnamespace)
"""
OWN = ("pgtide", "checked")
"""The trigger that says which event it is."""
MARK = "INSERT INTO pgtide.checks VALUES (event.lsn, event.seq);"
"""Before an event, in PL/pgSQL."""
SETTLE = """
BEGIN
    SET CONSTRAINTS ALL IMMEDIATE;
EXCEPTION WHEN integrity_constraint_violation OR plpgsql_error THEN
    NULL; -- what is wrong is told when everything has come
END;
SET CONSTRAINTS ALL DEFERRED;
"""
"""``settle``, in PL/pgSQL."""


class WaitsForRows(Exception):
    """A table has rows that deferred constraints could not look at yet, and so cannot be changed.

    Its source's transaction is not complete; the source has had no such rows in this table.
    """

    def __init__(self, error: PgtideError) -> None:
        super().__init__(error)
        self.error = error


def settle(connection: SqlConnection) -> None:
    """Have deferred constraints look at rows now: a table with some pending cannot be altered.

    If they are violated they wait: the source's transaction goes on.
    """
    try:
        with connection.transaction():
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except (psycopg.errors.IntegrityError, psycopg.errors.RaiseException):
        pass
    connection.execute("SET CONSTRAINTS ALL DEFERRED")


def begin_marks(connection: SqlConnection) -> bool:
    """Whether events are to be marked: something can be deferred."""
    row = connection.execute(_DEFERRABLE).fetchone()
    if row != (True,):
        return False
    _forget(connection)
    return True


def check(
    connection: SqlConnection, names: Sequence[tuple[str, str]] | None = None
) -> tuple[psycopg.Error, Position] | None:
    """Have them look; what they say, and at which event. The very first position: at none.

    ``names``: these only, with their schemas; others do not know their events any more.
    """
    which = "ALL" if names is None else ", ".join(_quoted(OWN, *names))
    try:
        with connection.transaction():
            connection.execute(f"SET CONSTRAINTS {which} IMMEDIATE".encode())
            connection.execute("DELETE FROM pgtide.checks")
    except (psycopg.errors.IntegrityError, psycopg.errors.RaiseException) as error:
        query = "SELECT currval('pgtide.checked_lsn'), currval('pgtide.checked_seq')"
        row = connection.execute(query).fetchone()
        assert row is not None, "a SELECT without FROM has one row"
        return error, Position(Lsn(row[0]), row[1])
    connection.execute("SET CONSTRAINTS ALL DEFERRED")
    _forget(connection)
    return None


def _forget(connection: SqlConnection) -> None:
    """Be at no event."""
    connection.execute("SELECT setval('pgtide.checked_lsn', 0), setval('pgtide.checked_seq', 0)")


def _quoted(*names: tuple[str, str]) -> list[str]:
    return [sql.Identifier(*name).as_string(None) for name in names]
