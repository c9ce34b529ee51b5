"""What is made once the rows of the snapshot are in the target: indexes, constraints, triggers.

``pgtide snapshot --schema`` stores the statements in the target; the sink runs them when it comes
to the end of the snapshot's rows, in the transaction that says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from pglast import ast
from pglast.parser import ParseError, parse_sql
from psycopg import sql

from pgtide.errors import PgtideError, TargetError, TargetUnavailable
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.failures import is_transient

SAY_EVERY_S = 10.0  # which statement is being run

logger = logging.getLogger(__name__)

# Statements name everything in full, and functions may refer to what comes later.
SETTINGS = {"search_path": "", "check_function_bodies": "off", "row_security": "off"}

# What sorts the keys of millions of rows without the disk.
_MEMORY = """
SELECT set_config('maintenance_work_mem', '256MB', true)
WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes('256MB')
"""

_NO_LOCKS = "53200"  # out of shared memory: the lock table is full
# Their messages can quote values.
_QUOTING = ("22", "P0")


def store_after_rows(connection: SqlConnection, pipeline: str, statements: Sequence[str]) -> None:
    """Replace what is to be run for a pipeline."""
    connection.execute("DELETE FROM pgtide.after_rows WHERE pipeline = %s", [pipeline])
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO pgtide.after_rows (pipeline, ordinal, statement) VALUES (%s, %s, %s)",
            [(pipeline, ordinal, text) for ordinal, text in enumerate(statements, start=1)],
        )


def run_after_rows(connection: SqlConnection, pipeline: str, *, parked: bool = False) -> int:
    """Run what waits for the rows, in the caller's transaction; how many statements that were.

    While tables are parked, what looks at rows of other tables goes on waiting. Raises TargetError
    for a statement that fails: the transaction is then lost.
    """
    rows = connection.execute(
        "SELECT ordinal, statement FROM pgtide.after_rows WHERE pipeline = %s ORDER BY ordinal",
        [pipeline],
    ).fetchall()
    if parked:
        rows = [row for row in rows if not _looks_elsewhere(row[1])]
    if not rows:
        return 0
    before = set_locally(connection, SETTINGS)
    connection.execute(_MEMORY)
    said_at = time.monotonic()
    logger.info("the rows are there: %d indexes, constraints and the like are made", len(rows))
    for number, (ordinal, statement) in enumerate(rows, start=1):
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            logger.info("making %s, %d of %d", describe(statement), number, len(rows))
        try:
            connection.execute(statement.encode())
        except psycopg.Error as exc:
            delete = sql.SQL(
                "DELETE FROM pgtide.after_rows WHERE pipeline = {} AND ordinal = {}"
            ).format(pipeline, ordinal)
            raise statement_failed(
                exc,
                describe(statement),
                "Correct it at the target, then run: pgtide run. To do without it, at the "
                f"target: {delete.as_string(None)}",
            ) from exc
    connection.execute(
        "DELETE FROM pgtide.after_rows WHERE pipeline = %s AND ordinal = ANY (%s)",
        [pipeline, [ordinal for ordinal, _ in rows]],
    )
    set_locally(connection, before)
    return len(rows)


def _looks_elsewhere(statement: str) -> bool:
    """Whether a statement is about rows of other tables: a foreign key, a materialized view's."""
    try:
        node: Any = parse_sql(statement)[0].stmt
    except (ParseError, IndexError):
        return False
    if isinstance(node, ast.RefreshMatViewStmt):
        return True
    commands = node.cmds or () if isinstance(node, ast.AlterTableStmt) else ()
    added = [cmd.def_ for cmd in commands if isinstance(cmd.def_, ast.Constraint)]
    return any(constraint.pktable is not None for constraint in added)


def set_locally(connection: SqlConnection, settings: dict[str, str]) -> dict[str, str]:
    """Change settings for the rest of the transaction; what they were."""
    before = {}
    for name, value in settings.items():
        row = connection.execute(
            "SELECT current_setting(%s), set_config(%s, %s, true)", [name, name, value]
        ).fetchone()
        assert row is not None
        before[name] = row[0]
    return before


def statement_failed(exc: psycopg.Error, what: str, hint: str) -> PgtideError:
    """The error for a statement of the schema that the target refuses."""
    state = exc.sqlstate or ""
    said = exc.diag.message_primary or f"SQLSTATE {state or 'unknown'}"
    if state.startswith(_QUOTING):
        said = f"SQLSTATE {state}"
    if state == _NO_LOCKS:
        hint = "Raise max_locks_per_transaction at the target, restart it, and try again."
        return TargetError(f"the target has no room to make {what}", detail=f"{said}.", hint=hint)
    if is_transient(exc):
        return TargetUnavailable(f"the target did not make {what}", detail=f"{said}.")
    return TargetError(f"the target cannot make {what}", detail=f"It says: {said}.", hint=hint)


def describe(statement: str) -> str:
    """Kind and name of what a statement makes; never its text, which may quote anything."""
    try:
        node: Any = parse_sql(statement)[0].stmt
    except (ParseError, IndexError):
        return "an object of the schema"
    match node:
        case ast.IndexStmt():
            return f"index {node.idxname} of {_name(node.relation)}"
        case ast.CreateTrigStmt():
            return f"trigger {node.trigname} of {_name(node.relation)}"
        case ast.CreatePolicyStmt():
            return f"policy {node.policy_name} of {_name(node.table)}"
        case ast.RuleStmt():
            return f"rule {node.rulename} of {_name(node.relation)}"
        case ast.AlterTableStmt():
            added = [cmd.def_ for cmd in node.cmds or () if isinstance(cmd.def_, ast.Constraint)]
            of = _name(node.relation)
            return f"constraint {added[0].conname} of {of}" if added else f"a change of {of}"
        case ast.RefreshMatViewStmt():
            return f"the rows of materialized view {_name(node.relation)}"
        case ast.ViewStmt():
            return f"view {_name(node.view)}"
    kind = type(node).__name__.removesuffix("Stmt")
    return f"an object of the schema ({kind})"


def _name(relation: ast.RangeVar | None) -> str:
    names = (relation.schemaname, relation.relname) if relation is not None else ()
    return ".".join(name for name in names if name)
