"""The storage of a target; what it refuses is an error of the target and not of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pgtide.errors import LogDenied, LogUnavailable, TargetError, TargetUnavailable
from pgtide.log.denial import denial
from pgtide.log.storage import Storage
from pgtide.spark.failures import target_denied

_NEVER = (FileExistsError, NotADirectoryError, PermissionError)


def open_storage(path: str, options: Mapping[str, str]) -> Storage:
    """The place of a target; made if it is not there."""
    storage = Storage(path, dict(options))
    if storage.local is None:
        return storage
    try:
        with target_answers():
            storage.local.mkdir(parents=True, exist_ok=True)
    except TargetUnavailable as exc:
        if isinstance(exc.__cause__, _NEVER):
            raise TargetError(
                f"the path of a sink cannot be used: {path}",
                detail=exc.detail,
                hint="Name another path in the sink of the pipeline.",
            ) from exc
        raise
    return storage


@contextmanager
def target_answers() -> Iterator[None]:
    """Raise what storage refuses as an error of the target."""
    try:
        yield
    except LogDenied as exc:
        raise target_denied(exc.detail) from exc
    except (OSError, LogUnavailable) as exc:
        if said := denial(exc):
            raise target_denied(said) from exc
        reason = exc.detail if isinstance(exc, LogUnavailable) else exc.strerror
        raise TargetUnavailable(
            "the storage of a target failed",
            detail=reason or type(exc).__name__,
            hint="Free space or repair the storage; nothing is lost, the batch comes again.",
        ) from exc
