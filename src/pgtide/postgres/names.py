"""Table names that people wrote: whether they are meant literally, and what they likely meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_QUOTED = re.compile(r'"(?:[^"]|"")+"')


def is_literal(pattern: str) -> bool:
    """Whether a pattern has no wildcard outside of quotes, and so names one table."""
    return not re.search(r"[*?\[]", _QUOTED.sub("", pattern))


def nearest(pattern: str, names: Iterable[tuple[str, str]]) -> str:
    """A hint with the tables whose names are most like the pattern."""
    known = [f"{schema}.{table}" for schema, table in names]
    wanted = pattern if "." in pattern else f"public.{pattern}"
    close = difflib.get_close_matches(wanted.replace('"', ""), known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(close)}?" if close else "Correct source.tables."
