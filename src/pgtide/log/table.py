"""A table of the log as delta-rs sees it: opening it, and what its commits have in common."""

from __future__ import annotations

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError, TableNotFoundError

from pgtide.errors import LogDenied, LogFenced, LogMissing, LogUnavailable
from pgtide.log.checksums import drop_checksums
from pgtide.log.storage import Storage, denied
from pgtide.position import Lsn

# Checkpoints and clean-up are maintenance's, off the commit path.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


# delta-rs reads a large directory in several calls, and takes a checksum whose commit came behind
# the first of them for a mistake of its own.
_CHECKSUM_FIRST = "CRC file version"
_TRIES = 3


def open_table(storage: Storage) -> DeltaTable:
    """The newest version of a table, or why it cannot be opened."""
    for _ in range(_TRIES):
        try:
            return _open_table(storage)
        except LogUnavailable as error:
            if _CHECKSUM_FIRST not in error.detail:
                raise
    # Its commit does not come: a copy was made amid commits, of one file and not of the other.
    drop_checksums(storage)
    return _open_table(storage)


def catch_up(table: DeltaTable) -> None:
    """Bring a handle to the newest version."""
    for left in reversed(range(_TRIES)):
        try:
            table.update_incremental()
            return
        except DeltaError as error:
            if not left or _CHECKSUM_FIRST not in str(error):
                raise


def _open_table(storage: Storage) -> DeltaTable:
    try:
        return DeltaTable(storage.root, storage_options=storage.options)
    except TableNotFoundError:
        raise LogMissing(
            "there is no change log here",
            detail=f"{storage.root} is not a Delta table.",
            hint="Check log.path, or make a log: pgtide init, then pgtide capture",
        ) from None
    except (DeltaError, OSError) as exc:
        raise denied(exc) or LogUnavailable(
            "the log cannot be opened",
            detail=str(exc).splitlines()[0],
            hint="Check that log.path and log.storage are right and the storage answers.",
        ) from exc


def create_refused(exc: Exception, storage: Storage) -> LogUnavailable | LogDenied:
    """The error for a table that could not be made."""
    return denied(exc) or LogUnavailable(
        "the log cannot be made",
        detail=f"{storage.root}: {str(exc).splitlines()[0]}",
        hint="Check that log.path and log.storage are right, then run again: pgtide init",
    )


def read_transaction(table: DeltaTable, app_id: str) -> Lsn:
    """The position that the handle's version has for an application id, 0 when it has none."""
    try:
        return Lsn(table.transaction_version(app_id) or 0)
    except (DeltaError, OSError) as exc:
        raise LogUnavailable("the log cannot be read", detail=str(exc).splitlines()[0]) from exc


def commit_path(version: int) -> str:
    """Where Delta keeps a commit."""
    return f"_delta_log/{version:020d}.json"


def commit_refused(exc: Exception, storage: Storage) -> LogFenced | LogUnavailable:
    """What a failed commit means: someone else writes, or the storage did not take it."""
    if "Concurrent transaction" in str(exc):
        return fenced(storage)
    return LogUnavailable(
        "the log did not take a commit",
        detail=str(exc).splitlines()[0],
        hint="Nothing was confirmed; capture opens the log again and goes on by itself.",
    )


def fenced(storage: Storage) -> LogFenced:
    """The error of a writer that is not the only one."""
    return LogFenced(
        "another capture writes this log",
        detail=f"The log at {storage.root} was advanced by someone else.",
        hint="Run only one: pgtide status shows the process; stop the other, then start again.",
    )
