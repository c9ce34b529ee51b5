"""Marks: what a command did to rows that no row event tells.

Reasons to read a table again (``Marks.reasons``):

    attach partition      rows appear under the root; ``Marks.partition`` names the partition
    detach partition      rows leave the root; likewise
    set logged            rows were never in the WAL
    rewrite: default      rows got values of a volatile default or a generation expression
    rewrite: type         rows were converted by ALTER COLUMN … TYPE
    rename enum value     stored values print differently from here on
    alter composite type  likewise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pglast import ast

from pgtide.capture.ddl_tags import type_name

# Bits of pg_event_trigger_table_rewrite_reason().
REWRITE_PERSISTENCE = 1
REWRITE_DEFAULT = 2
REWRITE_TYPE = 4

REWRITE_OF_TYPE = "rewrite: type"
SET_LOGGED = "set logged"

PARTITION_COMMANDS = {
    "AT_AttachPartition": "attach partition",
    "AT_DetachPartition": "detach partition",
    "AT_DetachPartitionFinalize": "detach partition",
}
ROWS_FIRST = frozenset({"CREATE TABLE AS", "SELECT INTO"})


@dataclass(frozen=True, slots=True)
class Marks:
    """What later stages must know beyond the command's text."""

    reasons: tuple[str, ...] = ()
    partition: tuple[str | None, str] | None = None  # schema as written, or None, and name
    retyped: frozenset[str] = frozenset()  # columns of ALTER COLUMN … TYPE
    rows_first: bool = False  # rows of the new table stand before this command in the WAL
    conditional: bool = False  # the statement says IF [NOT] EXISTS
    no_op: bool = False  # it does, and the server reported nothing made, changed or dropped
    temporary: bool = False  # about a temporary table, of which the server reported nothing
    complete: bool = True  # False: the statement was not found, so there may be more reasons

    def payload(self) -> dict[str, Any]:
        """The marks as they stand in the log."""
        schema, table = self.partition or (None, None)
        return {
            "refresh": bool(self.reasons),
            "reasons": list(self.reasons),
            "partition": {"schema": schema, "table": table} if self.partition else None,
            "rows_first": self.rows_first,
            "no_op": self.no_op,
            "complete": self.complete,
        }


def marks_of_statement(node: Any) -> Marks:
    """The marks that the statement's tree shows; ``node`` None: it could not be parsed."""
    conditional = any(getattr(node, name, False) for name in ("if_not_exists", "missing_ok"))
    return replace(_marks_of_rows(node), conditional=conditional, temporary=_is_temporary(node))


def _is_temporary(node: Any) -> bool:
    into = node.into if isinstance(node, ast.CreateTableAsStmt) else None
    relation = into.rel if into is not None else getattr(node, "relation", None)
    schema = relation.schemaname or "" if isinstance(relation, ast.RangeVar) else ""
    return schema.startswith("pg_temp")


def _marks_of_rows(node: Any) -> Marks:
    match node:
        case None:
            return Marks(complete=False)
        case ast.AlterEnumStmt() if node.oldVal is not None:
            return Marks(("rename enum value",))
        case ast.AlterTableStmt() if type_name(node.objtype) == "TYPE":
            return Marks(("alter composite type",))
        case ast.AlterTableStmt():
            return _marks_of_commands(node.cmds or ())
    return Marks()


def marks_of_command(
    shown: Marks,
    tag: str,
    objects: Sequence[Mapping[str, Any]],
    dropped: Sequence[Mapping[str, Any]],
    rewrites: Sequence[Mapping[str, Any]],
) -> Marks:
    """The statement's marks together with what the server reported."""
    persistence = {item.get("oid"): item.get("persistence") for item in objects}
    reasons = list(shown.reasons)
    for rewrite in rewrites:
        bits = int(rewrite["reason"])
        if bits & REWRITE_PERSISTENCE and persistence.get(rewrite["oid"]) == "p":
            reasons.append(SET_LOGGED)
        if bits & REWRITE_DEFAULT:
            reasons.append("rewrite: default")
        if bits & REWRITE_TYPE:
            reasons.append(REWRITE_OF_TYPE)
    # Only these two can change rows in ways that the server does not report.
    complete = shown.complete or tag not in ("ALTER TABLE", "ALTER TYPE")
    return replace(
        shown,
        reasons=tuple(dict.fromkeys(reasons)),
        rows_first=tag in ROWS_FIRST and bool(objects),
        no_op=shown.conditional and not (objects or dropped or rewrites),
        temporary=shown.temporary and not (objects or dropped or rewrites),
        complete=complete,
    )


def _marks_of_commands(commands: Sequence[Any]) -> Marks:
    """ATTACH and DETACH PARTITION always stand alone in their ALTER TABLE."""
    reasons: list[str] = []
    retyped: set[str] = set()
    partition = None
    for command in commands:
        kind = command.subtype.name
        if kind in PARTITION_COMMANDS:
            reasons.append(PARTITION_COMMANDS[kind])
            partition = (command.def_.name.schemaname, command.def_.name.relname)
        elif kind == "AT_SetLogged":
            reasons.append(SET_LOGGED)
        elif kind == "AT_AlterColumnType":
            retyped.add(command.name)
    return Marks(tuple(reasons), partition, frozenset(retyped))
