"""Small files that pgtide keeps beside its tables: what cannot be read is never guessed.

Taking a broken one for none would lose a position, a request or a reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgtide.errors import ConfigError, LogError, PgtideError

# ConfigError: of a position. AttributeError: JSON that is no object.
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, ConfigError)


@contextmanager
def understood(
    what: str, path: str, *, hint: str, error: type[PgtideError] = LogError
) -> Iterator[None]:
    """Read a file's content in here; raise that it holds something else than pgtide wrote."""
    try:
        yield
    except _NOT_OURS as exc:
        raise error(
            f"{what} cannot be understood",
            detail=f"{path} is not what pgtide writes.",
            hint=hint,
        ) from exc
