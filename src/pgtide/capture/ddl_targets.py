"""The names that a parsed statement's event must report, as the server will print them.

Where the server prints a name in a form that the statement does not show,
nothing is said rather than too much: a statement is only ever ruled out by
what is certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pglast import ast

from pgtide.capture.ddl_tags import FIXED, into_table, type_name

RELATIONS = frozenset({"TABLE", "VIEW", "MATVIEW", "INDEX", "SEQUENCE", "FOREIGN_TABLE"})
# Printed by the server as signatures, expressions or numbers, not as the names written.
UNNAMED = frozenset({"CAST", "LARGEOBJECT", "OPERATOR", "TRANSFORM", "ACCESS_METHOD"})
# Renamed in place: the event names the relation, whatever the part is called.
PARTS = frozenset({"ATTRIBUTE", "TABCONSTRAINT", "DOMCONSTRAINT"})
# Part of a relation and reported by both names.
ON_RELATION = frozenset({"COLUMN", "TRIGGER", "POLICY", "RULE"})
# Written with three names: schema, relation, part; or access method, schema, name.
THREE_NAMES = ON_RELATION | PARTS | {"OPCLASS", "OPFAMILY"}


@dataclass(frozen=True, slots=True)
class Target:
    """Names that must all appear in the identity of one reported object."""

    names: tuple[str, ...]
    bare: bool = False  # a relation without schema: found through search_path


def targets_of(node: Any) -> tuple[Target, ...]:
    """The objects of which the event must report at least one; empty when that is unknown."""
    kind = type(node).__name__
    match node:
        case ast.CreateForeignTableStmt():
            return targets_of(node.base)
        case ast.CreateTableAsStmt():
            return _target(node.into and node.into.rel)
        case ast.SelectStmt():
            return _target(into_table(node))
        case ast.AlterTableStmt():
            return _target(node.relation)
        case ast.CreateFunctionStmt():
            return _target(node.funcname)
        case ast.AlterFunctionStmt():
            return _target(node.func)
        case ast.DefineStmt():
            return () if type_name(node.kind) in UNNAMED else _target(node.defnames)
        case ast.IndexStmt():
            # Not the table's name: the event does not have it.
            names = (*_names(node.relation)[:-1], *_names(node.idxname))
            return (Target(names),) if node.idxname else ()
        case ast.DropStmt():
            return _dropped(node)
        case ast.RenameStmt():
            return _renamed(node)
        case ast.AlterObjectSchemaStmt():
            moved = _names(node.relation or node.object)
            if type_name(node.objectType) in UNNAMED | {"EXTENSION"} or not moved:
                return ()
            return (Target((*_names(node.newschema), moved[-1])),)
        case ast.AlterOwnerStmt():
            return _object(type_name(node.objectType), node.object)
        case ast.CommentStmt() | ast.SecLabelStmt():
            return _object(type_name(node.objtype), node.object)
    attributes = FIXED.get(kind, ("", ()))[1]
    return _target(*(getattr(node, attribute) for attribute in attributes))


def _dropped(node: Any) -> tuple[Target, ...]:
    found = [_object(type_name(node.removeType), item) for item in node.objects]
    return tuple(target for (target,) in found) if all(found) else ()


def _object(kind: str, written: Any) -> tuple[Target, ...]:
    """The target of statements that hold any kind of object in one attribute."""
    # A database's name may stand first; the server does not print it.
    names = _names(written)[-3 if kind in THREE_NAMES else -2 :]
    if kind in UNNAMED or not names:
        return ()
    return (Target(names, bare=kind in RELATIONS and len(names) == 1),)


def _renamed(node: Any) -> tuple[Target, ...]:
    kind = type_name(node.renameType)
    if kind in PARTS:
        return _target(node.relation)
    if kind in ON_RELATION:
        return _target(node.relation, node.newname)
    if node.relation is None:
        return () if kind in UNNAMED else _target(node.newname)
    schema = node.relation.schemaname
    return (Target((schema, node.newname) if schema else (node.newname,), bare=not schema),)


def _target(*written: Any) -> tuple[Target, ...]:
    """One target from the values that name it, or none if any of them is not plain names."""
    names: list[str] = []
    for value in written:
        part = _names(value)
        if not part:
            return ()
        names.extend(part)
    bare = bool(written) and isinstance(written[0], ast.RangeVar) and not written[0].schemaname
    return (Target(tuple(names), bare and len(written) == 1),) if names else ()


def _names(value: Any) -> tuple[str, ...]:
    """The names in a value; () when it holds anything that the server would print otherwise.

    Session-local schemas are left out, the server prints them all as pg_temp.
    """
    match value:
        case str():
            return () if value.startswith("pg_temp") else (value,)
        case ast.String():
            return _names(value.sval)
        case ast.RangeVar():
            return (*_names(value.schemaname), *_names(value.relname))
        case ast.ObjectWithArgs():
            return _names(value.objname)
        case ast.TypeName():
            names = _names(value.names)
            return () if names[:1] == ("pg_catalog",) else names
        case tuple() if value:
            parts = [_names(item) for item in value]
            return tuple(name for part in parts for name in part) if parts[-1] else ()
    return ()
