"""What the storage of a target refuses, as an error of the target and not of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgtide.errors import LogUnavailable, TargetUnavailable


@contextmanager
def target_answers() -> Iterator[None]:
    """Raise what storage refuses as an error of the target."""
    try:
        yield
    except (OSError, LogUnavailable) as exc:
        reason = exc.detail if isinstance(exc, LogUnavailable) else exc.strerror
        raise TargetUnavailable(
            "the storage of a target failed",
            detail=reason or type(exc).__name__,
            hint="Free space or repair the storage; nothing is lost, the batch comes again.",
        ) from exc
