"""Run what ``plan_ddl`` found, inside the open transaction of a target's connection.

Statements run under the ``search_path`` that they ran under at the source, with the target's own
defaults for the other settings that decide how text is read, and as the role of the pipeline. All
of it is put back afterwards. Behind it the relations that the source had must be there, in the
schemas that they had: a name without schema may have meant something else at the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgtide.errors import PgtideError, TargetUnavailable
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.ddl import Place, Replay, Step
from pgtide.sinks.postgres.ddl_payload import Payload, TableName, quoted
from pgtide.sinks.postgres.ddl_values import Unread
from pgtide.sinks.postgres.deferred import WaitsForRows, settle

# What the log's texts were printed with, and the target's session has for its rows.
PINNED = {
    "search_path": "pg_catalog",
    "check_function_bodies": "off",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
}
# Serialization, deadlock, lock_timeout, and everything about the connection or the server itself.
TRANSIENT = ("40", "55P03", "57", "08", "53", "58")
HOLDS_VALUES = ("22", "23")  # classes whose messages may quote rows


def run_ddl(connection: SqlConnection, replay: Replay, place: Place) -> None:
    """Run it all, or raise: TargetError, or TargetUnavailable when it may succeed later."""
    try:
        before = _settings(connection)  # also begins the transaction, if nothing has yet
        with connection.transaction():
            _refuse_unread(connection, replay, place)
            for table in replay.emptied:
                if _has_rows(connection, table):
                    _execute(connection, Step(f"TRUNCATE {quoted(*table)}", pinned=True), replay)
            for step in replay.steps:
                _execute(connection, step, replay)
            _check(connection, replay, place)
            _set(connection, before)  # a failure takes them back with the savepoint
    except psycopg.errors.ObjectInUse as error:
        raise WaitsForRows(_translated(error, replay.payload, place)) from error
    except psycopg.Error as error:
        raise _translated(error, replay.payload, place) from error


def _settings(connection: SqlConnection) -> dict[str, str]:
    query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
    return dict(connection.execute(query, [list(PINNED)]).fetchall())


def _set(connection: SqlConnection, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])


def _execute(connection: SqlConnection, step: Step, replay: Replay) -> None:
    _prepare(connection, step, replay.payload)
    try:
        with connection.transaction():
            connection.execute(step.sql.encode())
    except psycopg.errors.ObjectInUse:
        # Deferred constraints have still to look at rows of the table, which the source did when
        # the transactions ended that wrote them.
        settle(connection)
        connection.execute(step.sql.encode())


def _prepare(connection: SqlConnection, step: Step, payload: Payload) -> None:
    if step.pinned:
        _set(connection, PINNED)
        return
    for name in ("datestyle", "intervalstyle", "timezone"):
        connection.execute(sql.SQL("SET LOCAL {} TO DEFAULT").format(sql.Identifier(name)))
    path = ", ".join(quoted(name) for name in payload.search_path)
    # Bodies were checked by the source; here they may speak of tables that are not selected.
    _set(connection, {"search_path": path, "check_function_bodies": "off"})


def _has_rows(connection: SqlConnection, table: TableName) -> bool:
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*table))
    row = connection.execute(query).fetchone()
    return row == (True,)


def _refuse_unread(connection: SqlConnection, replay: Replay, place: Place) -> None:
    """Rows whose values only the source has, and no event will tell, must not be there."""
    for unread in replay.unread:
        table = unread.table
        if _has_rows(connection, table) and _differs(connection, unread, replay.payload):
            raise place.refusal(replay.payload, *_why(unread))


def _why(unread: Unread) -> tuple[str, str]:
    """What is wrong with rows that are there, and what to do about them."""
    table = ".".join(unread.table)
    if unread.root is None:
        return (
            "gives rows values that only the source has",
            f"{table} has no key by which they could be read again, or a route "
            "without inserts: bring its rows over by hand as well.",
        )
    root = ".".join(unread.root)
    return (
        f"takes rows in that did not come as those of {root}",
        f"The pipeline's tables or rules say something else of {table}: empty it at the target "
        f"first. If {root} has a key, the rows that the source has there follow.",
    )


def _differs(connection: SqlConnection, unread: Unread, payload: Payload) -> bool:
    """Whether the target may compute other values than the source did: it is asked."""
    if unread.probe is None:
        return True
    copy = sql.SQL("CREATE TEMP TABLE {} (LIKE {})").format(
        sql.Identifier(unread.name), sql.Identifier(*unread.table)
    )
    try:
        with connection.transaction(force_rollback=True):
            _prepare(connection, Step(unread.probe), payload)
            connection.execute(copy)
            connection.execute(unread.probe.encode())
    except psycopg.errors.InvalidObjectDefinition:
        return True
    return False


def _check(connection: SqlConnection, replay: Replay, place: Place) -> None:
    """Whether the relations are there, and gone, as at the source."""
    missing = _found(connection, replay.there, False)
    left = _found(connection, replay.gone, True)
    if missing or left:
        what = "is not there" if missing else "is still there"
        schema, table = (missing or left)[0]
        raise place.refusal(
            replay.payload,
            "did not do at the target what it did at the source",
            f"{schema}.{table} {what} behind it: the schemas of both sides may differ.",
        )


def _found(connection: SqlConnection, tables: Sequence[TableName], wanted: bool) -> list[TableName]:
    """Those of the relations that exist, or do not."""
    query = "SELECT pg_catalog.to_regclass(%s) IS NOT NULL"
    found = {
        table: connection.execute(query, [quoted(*table)]).fetchone() == (True,) for table in tables
    }
    return [table for table, exists in found.items() if exists == wanted]


def _translated(error: psycopg.Error, payload: Payload, place: Place) -> PgtideError:
    state = error.sqlstate or ""
    message = (error.diag.message_primary or "").strip()
    if not state or state.startswith(TRANSIENT):
        return TargetUnavailable(
            f"{payload.tag} at {place.position} could not be replayed now",
            detail=f"The target said: {message or 'connection lost'}.",
        )
    if state.startswith(HOLDS_VALUES):
        message = type(error).__name__
    return place.refusal(payload, "fails at the target", f"It said: {message} ({state}).")
