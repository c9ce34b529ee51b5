"""Tables in DDL: which of them the pipeline has, and what they are called at the target.

A statement about a table that the pipeline does not select is left out. Where routes give tables
other names, these are exchanged in statements that only hold names of tables where the grammar
says so (``CREATE TABLE``, ``ALTER TABLE``, ``CREATE INDEX``, …). In a view, a function's body or
any other text a name may mean a table, a column or nothing: such a statement is replayed as it is
if it mentions no table with another name, and refused otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pglast import ast

from pgtide.config.patterns import OWN_SCHEMA
from pgtide.position import Position
from pgtide.sinks.postgres.ddl_kinds import OF_TABLES
from pgtide.sinks.postgres.ddl_payload import (
    Item,
    Payload,
    TableName,
    name_of,
    quoted,
    root_of,
)
from pgtide.sinks.postgres.ddl_statement import Edit, edited, is_a, printed, tokens_of

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_MENTION = re.compile(rf"(?<![\w$])({_NAME})(?=\s*\.\s*({_NAME}))?")
_ROW_NAMES = frozenset({"new", "old", "excluded"})
_COMMENTED = frozenset({"OBJECT_TABLE", "OBJECT_COLUMN", "OBJECT_TABCONSTRAINT"})
_DROPPED = frozenset({"OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_FOREIGN_TABLE"})
_REWRITABLE = (
    ast.AlterTableStmt,
    ast.CreateStatsStmt,
    ast.CreateStmt,
    ast.CreateTrigStmt,
    ast.IndexStmt,
    ast.RenameStmt,
)


class CannotReplay(Exception):
    """Why nobody can tell what a statement has to be at the target."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """What rules make of columns that a command added, in rows that are there."""

    values: Mapping[str, str | None] = field(default_factory=dict)
    """Of each column that they change, as text."""
    unread: bool = False
    """Whether that is not all: it hinges on each row, and rows cannot be read again."""


@dataclass(frozen=True, slots=True)
class Names:
    """What rules and routes of a pipeline mean for tables; partitions are asked by their root."""

    selects: Callable[[TableName], bool] = lambda _: True
    """Whether the pipeline has the table: it is captured, and matches the pipeline's patterns."""
    chosen: Callable[[TableName], bool] = lambda _: True
    """Whether it matches these, be it that the table has to wait."""
    target: Callable[[TableName], TableName] = lambda table: table
    """The name at the target; of anything that is no table of the log, the same."""
    reshapes: Callable[[TableName, Collection[str]], bool] = lambda *_: False
    """Whether rules leave out or rename some of these columns of the table."""
    ruled: Callable[[TableName, Position, Sequence[str]], Ruled] = lambda *_: Ruled()
    """What rules make of new columns, in rows that were there before a command added them; which of
    these got defaults is said. CannotReplay if only the rows can tell what becomes of a default."""
    hidden: Callable[[TableName], frozenset[str]] = lambda _: frozenset()
    """Columns of the table whose values rules change."""
    filtered: Callable[[TableName], frozenset[str]] = lambda _: frozenset()
    """Columns of the table that filters name."""
    alike: Callable[[TableName, TableName], bool] = lambda *_: True
    """Whether rules say the same of a table under either name."""
    routed: bool = False
    """Whether ``target`` ever gives another name."""
    knows: Callable[[TableName], bool] = lambda _: True
    """Whether the log has a table of that name: tells what a name without schema means."""
    crossed: frozenset[str] = frozenset()
    """Schemas with tables that are elsewhere at the target, and tables of others in their place."""

    def moves(self, table: TableName) -> bool:
        return self.routed and self.target(table) != table


def relations_of(payload: Payload, kind: str) -> list[Item]:
    """The relations that a statement is about; of a type, a function or a schema there is none."""
    if kind not in OF_TABLES:
        return []
    about = list(payload.listed()) or list(payload.relations())
    return about + [item for item in payload.dropped_relations() if item["original"]]


def is_left_out(payload: Payload, kind: str, node: Any, names: Names) -> bool:
    """Whether a statement is only about tables that the pipeline does not select."""
    selected = {names.selects(root_of(item)) for item in relations_of(payload, kind)}
    if _names_table(payload, node):
        selected |= {names.selects(old) for old in before(payload, node)}
        if len(selected) > 1:
            raise CannotReplay("the pipeline selects the table under only one of its two names")
    return bool(selected) and not any(selected)


def keep_selected(payload: Payload, node: Any, names: Names) -> bool:
    """Take out of DROP and CREATE SCHEMA what the target does not have; whether there was any."""
    if is_a(node, ast.CreateSchemaStmt) and node.schemaElts:
        return _keep_elements(node, payload, names)
    if not is_a(node, ast.DropStmt):
        return False
    kept = node.objects
    if node.removeType.name in _DROPPED:
        kept = tuple(item for item in kept if _is_dropped(payload, item, names))
    elif node.removeType.name == "OBJECT_SCHEMA":
        kept = tuple(item for item in kept if item.sval != OWN_SCHEMA)
    changed = len(kept) < len(node.objects)
    node.objects = kept
    return changed


def _is_dropped(payload: Payload, written: Any, names: Names) -> bool:
    """Not what was temporary, not there (IF EXISTS), or is not selected."""
    parts = tuple(part.sval for part in written)[-2:]
    return any(
        name_of(item)[-len(parts) :] == parts and names.selects(root_of(item))
        for item in payload.dropped_relations()
    )


def _keep_elements(node: Any, payload: Payload, names: Names) -> bool:
    schema = node.schemaname or payload.made_schema()

    def kept(element: Any) -> bool:
        relation = getattr(element, "relation", None) or getattr(element, "view", None)
        return relation is None or names.selects((schema, relation.relname))

    elements = tuple(element for element in node.schemaElts if kept(element))
    changed = len(elements) < len(node.schemaElts)
    node.schemaElts = elements or None
    return changed


def routed(text: str, node: Any, payload: Payload, names: Names) -> tuple[str, ...]:
    """The statement, or the statements it takes, with the target's names of tables."""
    if not names.routed:
        return (text,)
    _refuse_crossed(payload, names)
    if _names_table(payload, node):
        return _moved(text, node, payload, names)
    if is_a(node, ast.DropStmt) and node.removeType.name == "OBJECT_TABLE":
        node.objects = tuple(_routed_parts(item, payload, names) for item in node.objects)
        return (printed(node),)
    if is_a(node, ast.CommentStmt) and node.objtype.name in _COMMENTED:
        behind = 0 if node.objtype.name == "OBJECT_TABLE" else 1  # a column's or constraint's name
        cut = len(node.object) - behind
        table = _routed_parts(node.object[:cut], payload, names)
        node.object = (*table, *node.object[cut:])
        return (printed(node),)
    other = is_a(node, ast.AlterTableStmt) and node.objtype.name != "OBJECT_TABLE"
    if is_a(node, ast.RenameStmt) and node.relation is None:
        _refuse_schema(node, payload, names)
    elif is_a(node, *_REWRITABLE) and not other:
        return (_exchanged(text, node, payload, names),)
    _refuse_mentions(text, payload, names)
    return (text,)


def _refuse_crossed(payload: Payload, names: Names) -> None:
    """What a table brought along went with it: under its name may be that of another table."""
    if payload.tag.startswith("CREATE") or any(payload.listed()):
        return
    dropped = (item for item in payload.dropped if item["original"])
    for item in (*payload.objects, *dropped):
        if item["type"] in ("index", "sequence") and item["schema"] in names.crossed:
            detail = f"routes put tables of schema {item['schema']} elsewhere, and others there"
            raise CannotReplay(detail)


def _refuse_schema(node: Any, payload: Payload, names: Names) -> None:
    """A schema's new name is that of its tables, unless routes put them elsewhere."""
    tables = [name_of(item) for item in payload.relations()]
    tables += [(node.subname, name) for _, name in tables]
    if node.renameType.name == "OBJECT_SCHEMA" and any(names.moves(table) for table in tables):
        raise CannotReplay("routes put tables of the schema elsewhere")


def _exchanged(text: str, node: Any, payload: Payload, names: Names) -> str:
    """Exchange the names of relations, which the tree knows the places of."""
    tokens = tokens_of(text)
    places = {token.start: index for index, token in enumerate(tokens)}
    edits: list[Edit] = []
    for part in walk(node):
        if is_a(part, ast.ColumnRef) and len(part.fields) > 1:
            _refuse_part(part.fields[:-1], payload, names)
        elif is_a(part, ast.TypeName):
            _refuse_part(part.names, payload, names)
        elif is_a(part, ast.RangeVar):
            table = _resolved(part.schemaname, part.relname, payload, names)
            dots = bool(part.schemaname) + bool(part.catalogname)
            if table is not None:
                last = tokens[places[part.location] + 2 * dots]
                edits.append(Edit(part.location, last.end + 1, quoted(*table)))
    return edited(text, edits)


def _refuse_part(parts: Any, payload: Payload, names: Names) -> None:
    """A table's name in front of a column, or as the name of its row type."""
    written = [part.sval for part in parts if is_a(part, ast.String)][-2:]
    if not written or written[-1] in _ROW_NAMES:
        return
    schema = written[0] if len(written) == 2 else None
    if _resolved(schema, written[-1], payload, names) is not None:
        raise CannotReplay(f"it names {written[-1]}, which routes rename, inside an expression")


def _resolved(schema: str | None, name: str, payload: Payload, names: Names) -> TableName | None:
    """The target's name of a relation; None: the same as at the source."""
    schemas = [schema] if schema else payload.schemas_of(name)
    candidates = [(place, name) for place in schemas]
    if not any(names.moves(candidate) for candidate in candidates):
        return None
    if len(candidates) > 1:
        candidates = [candidate for candidate in candidates if names.knows(candidate)]
    if len(candidates) != 1:
        raise CannotReplay(f"it does not say which schema {name} is in, and routes differ")
    return names.target(candidates[0])


def _routed_parts(parts: Any, payload: Payload, names: Names) -> tuple[Any, ...]:
    written = [part.sval for part in parts][-2:]
    schema = written[0] if len(written) == 2 else None
    table = _resolved(schema, written[-1], payload, names)
    return tuple(parts) if table is None else tuple(ast.String(sval=name) for name in table)


def _names_table(payload: Payload, node: Any) -> bool:
    """Whether a statement is the RENAME or SET SCHEMA of a table itself.

    ALTER TABLE may as well be about an index or a sequence, and ALTER INDEX … RENAME about a table.
    """
    if not any(payload.listed()):
        return False
    if is_a(node, ast.RenameStmt):
        return node.renameType.name in ("OBJECT_TABLE", "OBJECT_INDEX")
    return is_a(node, ast.AlterObjectSchemaStmt) and node.objectType.name == "OBJECT_TABLE"


def before(payload: Payload, node: Any) -> list[TableName]:
    """What a renamed or moved table may have been called; of another statement nothing."""
    if not _names_table(payload, node):
        return []
    name = node.relation.relname
    if node.relation.schemaname:
        return [(node.relation.schemaname, name)]
    if is_a(node, ast.RenameStmt):
        return [(schema, name) for schema in payload.schemas_of(node.newname)]
    return [(schema, name) for schema in payload.search_path]


def _moved(text: str, node: Any, payload: Payload, names: Names) -> tuple[str, ...]:
    """RENAME TO and SET SCHEMA: from one name at the target to another."""
    old = before(payload, node)
    (new,) = {name_of(item) for item in payload.listed()}
    if not any(names.moves(table) for table in (*old, new)):
        return (text,)
    if len(old) > 1:
        old = [table for table in old if names.knows(table)]
    if len(old) != 1:
        raise CannotReplay("it does not say which schema the table was in, and routes differ")
    (schema, table), (new_schema, new_table) = names.target(old[0]), names.target(new)
    statements: list[str] = []
    if table != new_table:
        statements.append(f"ALTER TABLE {quoted(schema, table)} RENAME TO {quoted(new_table)}")
    if schema != new_schema:
        moved = quoted(schema, new_table)
        statements.append(f"ALTER TABLE {moved} SET SCHEMA {quoted(new_schema)}")
    return tuple(statements)


def _refuse_mentions(text: str, payload: Payload, names: Names) -> None:
    """A text whose names nobody can tell apart must not hold one of a table that is renamed."""
    for match in _MENTION.finditer(text):
        name, second = (_unquoted(part) if part else None for part in match.groups())
        assert name is not None
        mentioned = [(schema, name) for schema in payload.search_path]
        mentioned += [(name, second)] if second else []
        if any(names.moves(table) for table in mentioned):
            raise CannotReplay(f"it mentions {second or name}, which routes rename")


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def walk(node: Any) -> Iterator[Any]:
    """Every node of a tree."""
    if isinstance(node, tuple):
        for item in node:
            yield from walk(item)
    elif isinstance(node, ast.Node):
        yield node
        for attribute in node:
            yield from walk(getattr(node, attribute))
