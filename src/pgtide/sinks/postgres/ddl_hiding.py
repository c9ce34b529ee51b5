"""What rules hide stays hidden when DDL comes: defaults of columns, and names that rules know.

A default is a value in the target's catalog, so a column whose values rules change has none there.
Rules find tables and columns by their names: a command that takes a table, a column or a partition
out of them, or a table into them, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from pglast import ast

from pgtide.sinks.postgres.ddl_names import CannotReplay, Names, before
from pgtide.sinks.postgres.ddl_payload import TABLES, Payload, TableName, name_of, root_of
from pgtide.sinks.postgres.ddl_statement import is_a

Defaults: TypeAlias = Sequence[tuple[str, str | None]]
"""Columns and what they have by default; None: nothing."""


def hide_defaults(payload: Payload, node: Any, names: Names) -> bool:
    """Take defaults of hidden columns out of a tree; whether there were any."""
    changed = False
    for table, made in _made(payload, node):
        hidden = names.hidden(table)
        for column in made.tableElts or ():
            if isinstance(column, ast.ColumnDef) and column.colname in hidden:
                changed |= _drop_default(column)
    about = frozenset[str]().union(*(names.hidden(root_of(item)) for item in payload.listed()))
    for command in node.cmds if is_a(node, ast.AlterTableStmt) else ():
        sets = command.subtype.name == "AT_ColumnDefault" and command.def_ is not None
        if sets and command.name in about:
            command.def_, changed = None, True
    return changed


def defaults_behind(
    given: Defaults, payload: Payload, node: Any, names: Names
) -> Iterator[tuple[TableName, str, str | None]]:
    """Tables, columns and the defaults to be set behind a statement; None: to be dropped.

    A new table may have got some of hidden columns all the same: LIKE, INHERITS, a serial.
    """
    selected = [item for item in payload.listed() if names.selects(root_of(item))]
    for item in selected[:1]:
        hidden = names.hidden(root_of(item))
        for column, default in given:
            yield names.target(name_of(item)), column, None if column in hidden else default
    for item in selected if is_a(node, ast.CreateStmt, ast.CreateSchemaStmt) else ():
        hidden = names.hidden(root_of(item))
        for fact in item["columns"]:
            if fact["name"] in hidden and fact["default"] and not fact["generated"]:
                yield names.target(name_of(item)), fact["name"], None


def refuse_unhidden(payload: Payload, node: Any, names: Names) -> None:
    """A name that rules do not know would let out what they hide."""
    for old, new in _renamed_tables(payload, node):
        if names.selects(new) and not names.alike(old, new):
            raise CannotReplay(
                f"rules treat {'.'.join(old)} and {'.'.join(new)} differently, and they are one "
                "table before and behind it: let the pipeline's rules fit both names"
            )
    if is_a(node, ast.RenameStmt) and node.renameType.name == "OBJECT_COLUMN":
        for item in payload.relations():
            hidden = names.hidden(root_of(item))
            if node.subname in hidden and node.newname not in hidden:
                raise CannotReplay(
                    f"rules change column {node.subname} of {'.'.join(root_of(item))}, and would "
                    f"not find it as {node.newname}: let the pipeline's rules fit both names"
                )


def _renamed_tables(payload: Payload, node: Any) -> Iterator[tuple[TableName, TableName]]:
    """Names that tables had before a command, and have behind it; for partitions their root's."""
    tables = [item for item in payload.relations() if item["kind"] in TABLES]
    if is_a(node, ast.RenameStmt) and node.renameType.name == "OBJECT_SCHEMA":
        roots = (root_of(item) for item in tables)
        inside = (root for root in roots if root[0] == node.newname)
        yield from (((node.subname, table), (schema, table)) for schema, table in inside)
    elif partition := payload.marks.get("partition"):
        left = {root_of(item) for item in payload.listed()}
        for item in tables:
            schema, table = root_of(item)
            here = partition["schema"] in (None, schema) and partition["table"] == table
            if here and "detach partition" in payload.marks["reasons"]:
                yield from ((root, (schema, table)) for root in left)
    else:
        moved = [name_of(item) for item in tables if item.get("listed", True) and not item["root"]]
        yield from ((old, new) for new in moved for old in before(payload, node))


def _made(payload: Payload, node: Any) -> Iterator[tuple[TableName, Any]]:
    """The tables that a statement makes, by the names that rules know them by."""
    listed = {name_of(item)[1]: root_of(item) for item in payload.listed()}
    inside = node.schemaElts or () if is_a(node, ast.CreateSchemaStmt) else (node,)
    for made in inside:
        if isinstance(made, ast.CreateStmt) and made.relation is not None:
            table = listed.get(made.relation.relname or "")
            if table is not None:
                yield table, made


def _drop_default(column: Any) -> bool:
    kept = tuple(c for c in column.constraints or () if c.contype.name != "CONSTR_DEFAULT")
    found = len(kept) < len(column.constraints or ())
    column.constraints = kept or None
    return found
