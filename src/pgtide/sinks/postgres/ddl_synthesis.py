"""Statements made from what the catalog said, where the statement itself cannot be run.

CREATE TABLE AS becomes a CREATE TABLE, since its rows are in the log. A command whose text is not
known is made from its facts only where these say everything: objects that were dropped, and
nothing else with them. Everything else is left to somebody who knows.
"""

from __future__ import annotations

from typing import Any

from pglast import ast

from pgtide.sinks.postgres.ddl_names import CannotReplay
from pgtide.sinks.postgres.ddl_payload import Item, Payload, TableName, quoted
from pgtide.sinks.postgres.ddl_statement import parse, printed

# What the server drops along with an object because it is part of it.
PARTS = frozenset(
    {"default value", "index", "rule", "sequence", "table constraint", "trigger", "type"}
)
DROPPABLE = frozenset(
    {
        *("aggregate", "collation", "domain", "extension", "foreign table", "function", "index"),
        *("materialized view", "policy", "procedure", "rule", "schema", "sequence", "statistics"),
        *("table", "trigger", "type", "view"),
    }
)


def created_empty(item: Item, table: TableName, node: Any) -> str:
    """CREATE TABLE for the table of a CREATE TABLE AS or SELECT INTO; ``node`` as far as known."""
    columns = ", ".join(_column(column) for column in item["columns"])
    unlogged = "UNLOGGED " if item["persistence"] == "u" else ""
    text = f"CREATE {unlogged}TABLE {quoted(*table)} ({columns})"
    into = _into(node)
    if into is None or not (into.options or into.accessMethod or into.tableSpaceName):
        return text
    tree = parse(text)
    tree.options, tree.accessMethod = into.options, into.accessMethod
    tree.tablespacename = into.tableSpaceName
    return printed(tree)


def _into(node: Any) -> Any:
    if isinstance(node, ast.CreateTableAsStmt):
        return node.into
    while isinstance(node, ast.SelectStmt) and node.larg is not None:
        node = node.larg
    return node.intoClause if isinstance(node, ast.SelectStmt) else None


def _column(column: Any) -> str:
    collation = f" COLLATE {column['collation']}" if column.get("collation") else ""
    return f"{quoted(column['name'])} {column['type']}{collation}"


def dropped(payload: Payload) -> tuple[str, ...]:
    """DROP statements for what a command of unknown text dropped, if that is all it did."""
    originals = [item for item in payload.dropped if item["original"]]
    others = [item for item in payload.dropped if not item["original"]]
    if not originals or not payload.tag.startswith("DROP "):
        raise CannotReplay("its text is not known")
    if any(item["type"] not in PARTS or item.get("table") for item in others):
        raise CannotReplay("its text is not known, and more was dropped than it named")
    if any(item["type"] not in DROPPABLE for item in originals):
        raise CannotReplay("its text is not known")
    return tuple(f"DROP {item['type'].upper()} {item['identity']}" for item in originals)
