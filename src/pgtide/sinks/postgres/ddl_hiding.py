"""What rules hide stays hidden when DDL comes: defaults of columns, and names that rules know.

A default is a value in the target's catalog, so a column whose values rules change has none there.
Rules find tables and columns by their names: a command that takes a table or a column out of them,
or into them, is refused; so is one that detaches a partition, or attaches one with rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

from pglast import ast

from pgtide.errors import TargetError
from pgtide.sinks.postgres.ddl_names import CannotReplay, Names, before
from pgtide.sinks.postgres.ddl_payload import TABLES, Item, Payload, TableName, name_of, root_of
from pgtide.sinks.postgres.ddl_statement import NotPrintable, is_a, parse, printed

Defaults: TypeAlias = Sequence[tuple[str, str | None]]
"""Columns and what they have by default; None: nothing."""

# ALTER TYPE … RENAME ATTRIBUTE renames columns as well: of typed tables, and of any table whose
# row type it names.
_COLUMNS = frozenset({"OBJECT_COLUMN", "OBJECT_ATTRIBUTE"})


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


def without_defaults(statement: str, hidden: Collection[tuple[TableName, str]]) -> str:
    """A dump's statement that makes a table, less the defaults of hidden columns."""
    node: Any = parse(statement) if hidden else None
    if not is_a(node, ast.CreateStmt):
        return statement
    table = (node.relation.schemaname, node.relation.relname)
    columns = [c for c in node.tableElts or () if isinstance(c, ast.ColumnDef)]
    found = [_drop_default(c) for c in columns if (table, c.colname) in hidden]
    try:
        return printed(node) if any(found) else statement
    except NotPrintable:
        raise TargetError(
            f"table {'.'.join(table)} cannot be made without the defaults that rules hide",
            hint="Make the target's schema yourself, then: pgtide snapshot",
        ) from None


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
    if is_a(node, ast.RenameStmt) and node.renameType.name in _COLUMNS:
        for item in payload.relations():
            for how, columns in (("change", names.hidden), ("filter by", names.filtered)):
                _refuse_renamed(item, node, columns(root_of(item)), how)
    for item in payload.relations():
        inherits = not item.get("listed", True) and not item["root"]
        for column in names.hidden(name_of(item)) & _given(payload, node) if inherits else ():
            raise CannotReplay(
                f"{'.'.join(name_of(item))} inherits a default of column {column}, which rules "
                "change there: let the pipeline's rules fit the table that it inherits from"
            )


def _refuse_renamed(item: Item, node: Any, columns: frozenset[str], how: str) -> None:
    known, other = node.subname, node.newname
    there = {column["name"] for column in item["columns"]}
    if known in there or other not in there:
        return  # an attribute of a type that it has columns of
    if (known in columns) != (other in columns):
        if known not in columns:
            known, other = other, known
        raise CannotReplay(
            f"rules {how} column {known} of {'.'.join(root_of(item))}, and not as "
            f"{other}: let the pipeline's rules fit both names"
        )


def _given(payload: Payload, node: Any) -> set[str]:
    """Columns that a command gives a default, with which it gives rows a value."""
    commands = node.cmds if is_a(node, ast.AlterTableStmt) else ()
    added = {c.def_.colname for c in commands if c.subtype.name == "AT_AddColumn"}
    touched = added | {c.name for c in commands if c.subtype.name == "AT_ColumnDefault"}
    columns = [column for item in payload.listed() for column in item["columns"]]
    return {
        column["name"]
        for column in columns
        if column["name"] in touched and (column["default"] or column.get("domain_default"))
    }


def joined(payload: Payload, names: Names) -> Item | None:
    """A table that has become a partition, if its rows have not come as the whole table's do."""
    if "attach partition" not in payload.marks.get("reasons", ()):
        return None
    written = payload.marks["partition"]
    for item in payload.relations():
        here = written["schema"] in (None, item["schema"]) and written["table"] == item["name"]
        own, root = name_of(item), root_of(item)
        if here and own != root and names.selects(root):
            return None if names.chosen(own) and names.alike(own, root) else item
    return None


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
