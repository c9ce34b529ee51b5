"""Table names that people wrote, what they meant by them, and statements for them to write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_LISTED = re.compile(r'"((?:[^"]|"")*)"|[^\s,]+')


def is_literal(pattern: str) -> bool:
    """Whether a pattern has no wildcard outside of quotes, and so names one table."""
    return not re.search(r"[*?\[]", _QUOTED.sub("", pattern))


def nearest(pattern: str, names: Iterable[tuple[str, str]]) -> str:
    """A hint with the tables whose names are most like the pattern."""
    known = [f"{schema}.{table}" for schema, table in names]
    wanted = pattern if "." in pattern else f"public.{pattern}"
    close = difflib.get_close_matches(wanted.replace('"', ""), known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else "Correct source.tables."


def listed_names(setting: str) -> list[str]:
    """The names in a setting such as ``search_path``, as the server reads them.

    Without quotes letters are small, and a dot is one like any other: a path that was not given by
    SET (``options``, ``set_config``) is shown as it was written.
    """
    found = _LISTED.finditer(setting)
    return [_lower(m[0]) if m[1] is None else m[1].replace('""', '"') for m in found]


def _lower(name: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in name)


def identity_full(schema: str, table: str) -> str:
    """The statement that has a table send its old rows, to be shown."""
    return f"ALTER TABLE {_sql(schema)}.{_sql(table)} REPLICA IDENTITY FULL"


def _sql(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'
