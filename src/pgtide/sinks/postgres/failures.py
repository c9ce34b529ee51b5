"""What a target answers, as errors of ours: terminal or not, without row values but keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from pgtide.errors import PgtideError, TargetError, TargetUnavailable
from pgtide.position import Position
from pgtide.postgres.connection import is_vanished

if TYPE_CHECKING:
    from pgtide.spark.layout import TableName  # Spark comes with it, and takes its time

# Connection, insufficient resources, operator intervention, system error; deadlock,
# serialization, a lock that is not to be had; disk full is among them. A server is read-only while
# it is a standby, and with some providers when its disk fills up.
_TRANSIENT = ("08", "53", "57", "58", "40", "55P03", "25006", "25P03", "25P04")


# Data that a type does not hold, constraints, limits (of an index's rows), what triggers raise.
_OF_ROWS = ("22", "23", "54", "P0")
_CONFLICTS = {
    "insert_exists": "a row that was inserted is there already",
    "update_missing": "a row that was changed is not there",
    "delete_missing": "a row that was deleted is not there",
    "not_whole": "a row is not there, and its change does not carry all of its values",
    "several_rows": "several rows have the key of one that was changed or deleted",
}


class TableRefused(Exception):
    """A row of one table that the target does not take."""

    def __init__(self, table: TableName, error: PgtideError, state: str = "") -> None:
        """``state``: the SQLSTATE, if the target has said one."""
        super().__init__(table, error, state)  # as they are: it comes pickled from tasks
        self.table = table
        self.error = error
        self.state = state


# Classes whose messages name objects, never values; a syntax error may be one in a value.
_NAMING = ("08", "0A", "25", "28", "40", "42", "53", "54", "55", "57", "58")
_SYNTAX = "42601"
_DAMAGED = "It passes if something was dropped meanwhile. If it stays, the target's catalog is "
_DAMAGED += "damaged: run REINDEX SYSTEM there, or build the target anew."
_AGAIN = "Then: pgtide run, or pgtide resume if the table is parked"
_HINT = "Correct it at the target, then run again: pgtide run"


def target_error(error: psycopg.Error, doing: str, again: str = "") -> PgtideError:
    """The error for what the target refused; ``doing`` completes "while …".

    ``again``: the hint where it may pass, for whoever does not try again by himself.

    The server's own text may quote values, so it is told by its condition and the names of what
    it is about; its text only where that never holds a value.
    """
    state = error.sqlstate or ""
    if is_transient(error):
        fact = _fact(error) if state else "no connection to it, or it was lost"
        return TargetUnavailable(
            "the target did not do it",
            detail=f"{fact}, while {doing}.",
            hint=_DAMAGED if _has_vanished(error) else again,
        )
    return TargetError("the target refuses", detail=f"{_fact(error)}, while {doing}.", hint=_HINT)


@contextmanager
def asking_target(doing: str, again: str) -> Iterator[None]:
    """What psycopg raises, as ``target_error`` tells it."""
    try:
        yield
    except psycopg.Error as error:
        raise target_error(error, doing, again) from error


def is_transient(error: psycopg.Error) -> bool:
    """Whether the same may succeed later."""
    state = error.sqlstate or ""
    return not state or _has_vanished(error) or state.startswith(_TRANSIENT)


def _has_vanished(error: psycopg.Error) -> bool:
    return is_vanished(error.sqlstate or "", error.diag.message_primary or "")


def is_of_a_row(error: psycopg.Error) -> bool:
    """Whether a row was refused; by a constraint maybe only because of the order of changes."""
    return (error.sqlstate or "").startswith(_OF_ROWS)


def row_refused(
    table: TableName,
    position: Position,
    key: Mapping[str, str | None],
    kind: str,
    constraint: str | None = None,
) -> TableRefused:
    """What is wrong with a row, by its key; no other values. ``kind``: a conflict, or SQLSTATE."""
    name = f"In {'.'.join(table)}"
    where = f"{name}, key {json.dumps(key, ensure_ascii=False, sort_keys=True)}" if key else name
    if kind in _CONFLICTS:
        hint = f"Set on_conflict to apply or keep, or correct the row. {_AGAIN}"
        if kind == "several_rows":
            hint = "Remove all but one, and add the unique index that is missing there. Partitions "
            hint += f"with keys of their own: give their table one. {_AGAIN}"
        error = TargetError(
            f"the target: {_CONFLICTS[kind]}", detail=f"{where}, at {position}.", hint=hint
        )
    else:
        error = TargetError(
            "the target refuses a row" + (f" by constraint {constraint}" if constraint else ""),
            detail=f"{where}, at {position}, SQLSTATE {kind}.",
            hint=f"Correct the constraint or the row at the target. {_AGAIN}",
        )
    return TableRefused(table, error, kind)


def _fact(error: psycopg.Error) -> str:
    diag = error.diag
    named = [
        f"{word} {name}"
        for word, name in (
            ("table", diag.table_name and f"{diag.schema_name}.{diag.table_name}"),
            ("column", diag.column_name),
            ("constraint", diag.constraint_name),
            ("type", diag.datatype_name),
        )
        if name
    ]
    condition = type(error).__name__
    state = error.sqlstate or ""
    named_only = state[:2] in _NAMING and state != _SYNTAX
    says = diag.message_primary if named_only else None
    about = f" ({', '.join(named)})" if named else ""
    return f"{says or condition}{about}, SQLSTATE {error.sqlstate}"
