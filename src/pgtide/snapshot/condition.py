"""Conditions that people write: texts that go into queries as they are.

One that closes a bracket too many, or begins another statement, would be part of the query's own
words: of which rows it may read, or of what is done at the source.
"""

from __future__ import annotations

from typing import Any

from pglast import parse_sql
from pglast.parser import ParseError

from pgtide.errors import ConfigError

_HINT = "Names of functions and types outside pg_catalog need their schema."


def not_understood(what: str, why: str) -> ConfigError:
    """The error for a condition, ``what``, that is none."""
    return ConfigError(f"{what} is not understood", detail=f"{why}.", hint=_HINT)


def require_condition(text: str, what: str) -> None:
    """Refuse what is not one expression and nothing else."""
    try:
        # Without brackets around it, so that it cannot close them.
        statements = parse_sql(f"SELECT WHERE {text}\n")
    except ParseError as exc:
        raise not_understood(what, exc.args[0]) from None
    query: Any = statements[0].stmt
    if len(statements) > 1 or [name for name in query if getattr(query, name)] != ["whereClause"]:
        raise not_understood(what, "It goes on behind the condition")
