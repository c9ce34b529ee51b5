"""The setting ``unbounded_numeric``: what a ``numeric`` without precision becomes in Spark.

A floating point type is not among what it may be: it would round. What a decimal cannot hold
exactly is unrepresentable instead.
"""

from __future__ import annotations

import re

from pgtide.errors import ConfigError

STRING = "string"
MAX_PRECISION = 38  # decimal digits that Spark's decimal holds

_DECIMAL = re.compile(r"\s*decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)\s*", re.ASCII | re.IGNORECASE)


def parse_unbounded_numeric(text: object) -> tuple[int, int] | None:
    """``"decimal(38,10)"`` to its precision and scale, ``"string"`` to None."""
    if isinstance(text, str) and text.strip().lower() == STRING:
        return None
    match = _DECIMAL.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _unfit(text, "It is neither string nor a decimal with precision and scale.")
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= MAX_PRECISION:
        raise _unfit(text, f"A decimal cannot have {precision} digits.")
    if scale > precision:
        raise _unfit(text, f"Of {precision} digits {scale} cannot be behind the point.")
    return precision, scale


def checked_unbounded_numeric(text: object) -> str:
    """The setting as Spark spells it."""
    digits = parse_unbounded_numeric(text)
    return STRING if digits is None else f"decimal({digits[0]},{digits[1]})"


def _unfit(text: object, reason: str) -> ConfigError:
    shown = repr(text) if isinstance(text, str | int | float) else f"a {type(text).__name__}"
    return ConfigError(
        f"unbounded_numeric cannot be {shown}",
        detail=reason,
        hint=f"write string, or decimal(p,s) with p from 1 to {MAX_PRECISION} and s from 0 to p, "
        "for example decimal(38,10)",
    )
