"""Which tables: a list of glob patterns over ``schema.table``.

``*``, ``?`` and ``[…]`` as in a shell, compared with the names as the catalog
spells them (no case folding). ``!`` in front excludes. The last pattern that
matches decides. A pattern without a dot means schema public. A part in double
quotes is taken literally, so that names with dots or stars can be written.

System schemas and pgtide's own are never matched, whatever the patterns say.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgtide.errors import ConfigError

OWN_SCHEMA = "pgtide"
"""Where ``pgtide init`` puts its objects, the secret of the DDL trigger among them."""

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class _Pattern:
    text: str
    exclude: bool
    schema: re.Pattern[str]
    literal_schema: str | None
    table: re.Pattern[str]

    def matches(self, schema: str, table: str) -> bool:
        return bool(self.schema.match(schema) and self.table.match(table))


class TablePatterns:
    """An ordered list of patterns; raises ConfigError for one that cannot mean anything."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_parse(text) for text in patterns]
        if all(pattern.exclude for pattern in self._patterns):
            raise ConfigError(
                "no pattern includes a table",
                detail="Patterns that start with ! only take tables away from earlier ones.",
                hint='start the list with "*.*" to mean every table',
            )

    def matches(self, schema: str, table: str) -> bool:
        if is_system_schema(schema):
            return False
        for pattern in reversed(self._patterns):
            if pattern.matches(schema, table):
                return not pattern.exclude
        return False

    def schemas(self) -> set[str] | None:
        """The schemas that are included by name, or None when some pattern has a wildcard there."""
        names = {pattern.literal_schema for pattern in self._patterns if not pattern.exclude}
        literal = {name for name in names if name is not None}
        return literal if len(literal) == len(names) else None

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """The including patterns that match none of these tables: likely misspelt."""
        known = list(tables)
        return [
            pattern.text
            for pattern in self._patterns
            if not pattern.exclude and not any(pattern.matches(*table) for table in known)
        ]

    def __repr__(self) -> str:
        return f"TablePatterns({[pattern.text for pattern in self._patterns]!r})"


def is_system_schema(schema: str) -> bool:
    """Whether a schema is Postgres's (``pg_`` is reserved for it) or pgtide's own."""
    return schema.startswith("pg_") or schema in ("information_schema", OWN_SCHEMA)


def _parse(text: str) -> _Pattern:
    exclude = text.startswith("!")
    parts = split_name(text)
    schema, table = parts if len(parts) == 2 else (("public", True), parts[0])
    name, quoted = schema
    literal_schema = name if quoted or not _WILDCARD.search(name) else None
    if literal_schema and is_system_schema(literal_schema) and not exclude:
        raise ConfigError(f"schema {literal_schema} in pattern {text!r} cannot be captured")
    return _Pattern(text, exclude, _compile(*schema), literal_schema, _compile(*table))


def split_name(text: str) -> list[tuple[str, bool]]:
    """The one or two parts of a pattern or name, each with whether it was quoted."""
    parts: list[tuple[str, bool]] = []
    at = 1 if text.startswith("!") else 0
    while match := _PART.match(text, at):
        quoted = match["quoted"]
        parts.append((quoted.replace('""', '"'), True) if quoted else (match["plain"], False))
        at = match.end()
        if at == len(text) and len(parts) <= 2:
            return parts
        if text[at : at + 1] != ".":
            break
        at += 1
    raise ConfigError(
        f"{text!r} is not a table pattern",
        hint="""write schema.table, for example public.* or '!public."odd.name"'""",
    )


def _compile(name: str, quoted: bool) -> re.Pattern[str]:
    return re.compile(rf"(?s:{re.escape(name)})\Z" if quoted else fnmatch.translate(name))
