"""Kinds of DDL: what ``sink.ddl`` selects, by patterns such as ``["*", "!index"]``.

A statement has one kind, mostly the noun of its command tag. The last pattern that matches
decides; ``!`` excludes. Kinds in ``BY_NAME`` speak of roles, which a target may not have: a
pattern has to name them, ``*`` does not mean them. Kinds in ``NEVER`` make no sense on a target.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from pglast import ast

from pgtide.errors import ConfigError
from pgtide.sinks.postgres.ddl_statement import is_a

VERBS = ("CREATE ", "ALTER ", "DROP ", "IMPORT ")

# Nouns of command tags that share a kind with another; all others are a kind of their own.
SAME_KIND = {
    "access method": "operator",
    "aggregate": "function",
    "cast": "operator",
    "conversion": "operator",
    "default privileges": "grant",
    "domain": "type",
    "foreign data wrapper": "server",
    "foreign schema": "foreign table",
    "grant": "grant",
    "language": "function",
    "operator class": "operator",
    "operator family": "operator",
    "owned": "owner",
    "procedure": "function",
    "refresh materialized view": "refresh",
    "revoke": "grant",
    "routine": "function",
    "select into": "table",
    "table as": "table",
    "text search configuration": "text search",
    "text search dictionary": "text search",
    "text search parser": "text search",
    "text search template": "text search",
    "transform": "operator",
}

KINDS = frozenset(
    {
        "collation",
        "comment",
        "extension",
        "foreign table",
        "function",
        "index",
        "materialized view",
        "operator",
        "policy",
        "refresh",
        "rule",
        "schema",
        "security label",
        "sequence",
        "server",
        "statistics",
        "table",
        "text search",
        "trigger",
        "type",
        "view",
    }
)
BY_NAME = frozenset({"grant", "owner", "user mapping"})
NEVER = {
    "event trigger": "event triggers are about the server they are on",
    "publication": "publications belong to the source",
    "subscription": "subscriptions belong to the source",
    "reindex": "it changes how an index is stored, not what it says",
}

# Kinds whose statements are about relations that patterns over table names select.
OF_TABLES = frozenset(
    {
        *("comment", "foreign table", "index", "materialized view", "policy", "refresh", "rule"),
        *("statistics", "table", "trigger", "view"),
    }
)


class DdlKinds:
    """The kinds that a target takes; raises ConfigError for a pattern that means none."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(text.startswith("!"), text.removeprefix("!")) for text in patterns]
        known = sorted(KINDS | BY_NAME)
        for _, pattern in self._patterns:
            if not fnmatch.filter(known, pattern):
                raise ConfigError(
                    f"{pattern!r} is no kind of DDL", hint=f"Choose from: {', '.join(known)}."
                )

    @property
    def none(self) -> bool:
        """Whether nothing is replayed at all."""
        return all(excludes for excludes, _ in self._patterns)

    def selects(self, kind: str) -> bool:
        """Whether statements of a kind are replayed."""
        for excludes, pattern in reversed(self._patterns):
            if kind == pattern or (kind not in BY_NAME and fnmatch.fnmatchcase(kind, pattern)):
                return not excludes
        return False


def kind_of(tag: str, node: Any) -> str:
    """The kind of a statement, by its command tag and, where that says too little, its tree."""
    if is_a(node, ast.AlterOwnerStmt) or _changes_owner_only(node):
        return "owner"
    noun = tag
    for verb in VERBS:
        noun = noun.removeprefix(verb)
    noun = noun.lower()
    return SAME_KIND.get(noun, noun)


def _changes_owner_only(node: Any) -> bool:
    return is_a(node, ast.AlterTableStmt) and all(
        command.subtype.name == "AT_ChangeOwner" for command in node.cmds
    )
