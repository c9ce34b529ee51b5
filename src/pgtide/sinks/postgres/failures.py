"""What a target answers, as errors of ours: terminal or not, without row values."""

from __future__ import annotations

import psycopg

from pgtide.errors import PgtideError, TargetError, TargetUnavailable
from pgtide.spark.layout import TableName

# Connection, insufficient resources, operator intervention, system error; deadlock,
# serialization, a lock that is not to be had; disk full is among them.
_TRANSIENT = ("08", "53", "57", "58", "40", "55P03")


class TableRefused(Exception):
    """A row of one table that the target does not take."""

    def __init__(self, table: TableName, error: TargetError) -> None:
        super().__init__(str(error))
        self.table = table
        self.error = error


# Classes whose messages name objects, never values; a syntax error may be one in a value.
_NAMING = ("08", "0A", "25", "28", "40", "42", "53", "54", "55", "57", "58")
_SYNTAX = "42601"
_HINT = "Correct it at the target, then run again: pgtide run"


def target_error(error: psycopg.Error, doing: str) -> PgtideError:
    """The error for what the target refused; ``doing`` completes "while …".

    The server's own text may quote values, so it is told by its condition and the names of what
    it is about; its text only where that never holds a value.
    """
    state = error.sqlstate or ""
    if is_transient(error):
        fact = _fact(error) if state else "no connection to it, or it was lost"
        return TargetUnavailable("the target did not do it", detail=f"{fact}, while {doing}.")
    return TargetError("the target refuses", detail=f"{_fact(error)}, while {doing}.", hint=_HINT)


def is_transient(error: psycopg.Error) -> bool:
    """Whether the same may succeed later."""
    state = error.sqlstate or ""
    return not state or state.startswith(_TRANSIENT)


def is_integrity(error: psycopg.Error) -> bool:
    """Whether a constraint was violated, maybe only because of the order of changes."""
    return (error.sqlstate or "").startswith("23")


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
