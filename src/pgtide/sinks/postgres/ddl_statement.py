"""The text of a statement, and changes to it that keep everything else as it was written.

Where a keyword or a name is all that changes, it is exchanged in the text. Anything else changes
the parse tree, which is printed again; the print counts only if it parses back to that tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pglast import ast
from pglast.parser import ParseError, Token, parse_sql, scan
from pglast.stream import RawStream

_SWITCH = re.compile(r"AT_(Enable|Disable).*(Trig|Rule)")


class NotPrintable(Exception):
    """A changed tree whose text would not be the same statement."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A stretch of the text and what stands there instead; ``end`` is behind it."""

    start: int
    end: int
    text: str


def is_a(node: Any, *kinds: type) -> bool:
    """As ``isinstance``, for a tree: there every attribute is taken to be what the grammar says."""
    return isinstance(node, kinds)


def parse(text: str) -> Any:
    """The tree of one statement; None for syntax that is newer than this parser."""
    try:
        statements = parse_sql(text)
    except (ParseError, RecursionError):
        return None
    return statements[0].stmt if len(statements) == 1 else None


def printed(node: Any) -> str:
    """The text of a tree."""
    text = str(RawStream()(node))
    if parse(text) != node:
        raise NotPrintable
    return text


def tokens_of(text: str) -> list[Token]:
    """The tokens of a statement that has been parsed, comments left off."""
    return [token for token in scan(text) if not token.name.endswith("COMMENT")]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with stretches exchanged; they do not overlap."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def veiled(text: str) -> str:
    """The statement without constants and comments, which may quote what rules hide."""
    try:
        tokens = scan(text)
    except ParseError:
        return "not shown"
    edits = [
        Edit(token.start, token.end + 1, "" if token.name.endswith("COMMENT") else "***")
        for token in tokens
        if token.name.endswith(("CONST", "COMMENT"))
    ]
    return edited(text, edits)


def inside_transaction(text: str, node: Any) -> str:
    """The statement as it may run inside a transaction: without CONCURRENTLY.

    FINALIZE ends a DETACH … CONCURRENTLY that was interrupted, of which the target saw nothing:
    there it is a plain DETACH.
    """
    word = _concurrent_word(node)
    if not word:
        return text
    # The first one is the command's own: as a name it would have to stand in quotes before it.
    token = next(token for token in tokens_of(text) if token.name == word)
    return edited(text, [Edit(token.start, token.end + 1, "")]).rstrip()


def _concurrent_word(node: Any) -> str:
    if is_a(node, ast.IndexStmt, ast.DropStmt) and node.concurrent:
        return "CONCURRENTLY"
    for command in node.cmds if is_a(node, ast.AlterTableStmt) else ():
        if command.subtype.name == "AT_DetachPartitionFinalize":
            return "FINALIZE"
        if command.subtype.name == "AT_DetachPartition" and command.def_.concurrent:
            return "CONCURRENTLY"
    return ""


def if_exists(text: str) -> str:
    """DROP INDEX … that does not mind an index that is not there."""
    token = next(token for token in tokens_of(text) if token.name == "INDEX")
    return edited(text, [Edit(token.end + 1, token.end + 1, " IF EXISTS")])


def named_index(text: str, name: str) -> str:
    """CREATE INDEX without a name, with the one that the source has given it."""
    token = next(token for token in tokens_of(text) if token.name == "ON")
    return edited(text, [Edit(token.start, token.start, f"{name} ")])


def named_columns(node: Any) -> set[str]:
    """Columns that a statement changes, by the names that they have before it."""
    if is_a(node, ast.RenameStmt):
        return {node.subname} if node.renameType.name == "OBJECT_COLUMN" else set()
    parts = ("AT_DropColumn", "AT_AlterColumnType", "AT_ColumnDefault")
    commands = node.cmds if is_a(node, ast.AlterTableStmt) else ()
    return {command.name for command in commands if command.subtype.name in parts}


def switches(node: Any) -> bool:
    """Whether a statement enables, disables or renames triggers or rules of a table."""
    if is_a(node, ast.RenameStmt):
        return node.renameType.name in ("OBJECT_TRIGGER", "OBJECT_RULE")
    return is_a(node, ast.AlterTableStmt) and any(
        _SWITCH.match(command.subtype.name) for command in node.cmds
    )


def without_roles(node: Any, schema: str) -> bool:
    """Take OWNER TO and AUTHORIZATION out of a tree; whether there was any.

    ``schema``: the one that was made, which may have got its name from the role.
    """
    if is_a(node, ast.CreateSchemaStmt) and node.authrole is not None:
        node.schemaname = node.schemaname or schema
        node.authrole = None
        return True
    if not is_a(node, ast.AlterTableStmt):
        return False
    kept = tuple(command for command in node.cmds if command.subtype.name != "AT_ChangeOwner")
    changed = len(kept) < len(node.cmds)
    node.cmds = kept
    return changed
