"""Commits of maintenance: they change which files hold the rows, never what readers see as new.

Every action has ``dataChange=false``, retention's too: followers and streams pass over the
commit, and Delta lets it and an append at the same time both succeed. Whether two
maintenance runs collide is decided by the maintenance counter in the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from pgtide.errors import LogUnavailable
from pgtide.log.datafile import now_ms
from pgtide.log.schema import TABLE_SCHEMA
from pgtide.log.snapshot import DataFile, Snapshot
from pgtide.log.source import maintenance_app_id
from pgtide.log.storage import Storage
from pgtide.log.table import NO_HOOKS, catch_up, commit_path, read_transaction

# Appends that win while we commit cost one try each; there are at most some tens a second.
_TRIES = 200


def commit_maintenance(
    changes: Storage,
    table: DeltaTable,
    snapshot: Snapshot,
    actions: Sequence[AddAction | RemoveAction],
    *transactions: Transaction,
) -> bool:
    """Commit what was planned on ``snapshot``, durably; False when another run came first."""
    counter = maintenance_app_id(snapshot.source.slot)
    mine = Transaction(counter, snapshot.maintenance + 1)
    try:
        table.create_write_transaction(
            list(actions),
            "append",
            TABLE_SCHEMA,
            ["day"],
            commit_properties=CommitProperties(
                app_transactions=[mine, *transactions], max_commit_retries=_TRIES
            ),
            post_commithook_properties=NO_HOOKS,
        )
        catch_up(table)
    except CommitFailedError as exc:
        if _newest_counter(table, counter) > snapshot.maintenance:
            return False
        raise _refused(exc) from exc
    except (DeltaError, OSError) as exc:
        raise _refused(exc) from exc
    for version in range(snapshot.version + 1, table.version() + 1):
        changes.sync(commit_path(version))
    return True


def _newest_counter(table: DeltaTable, counter: str) -> int:
    """The counter after the handle has caught up with what the others committed."""
    try:
        catch_up(table)
    except (DeltaError, OSError) as exc:
        raise _refused(exc) from exc
    return read_transaction(table, counter)


def remove_action(file: DataFile) -> RemoveAction:
    """What takes a file out of the log; it stays on disk for those who read older versions."""
    return RemoveAction(file.path, False, now_ms(), file.size, {"day": file.day.isoformat()})


def _refused(exc: Exception) -> LogUnavailable:
    return LogUnavailable(
        "the log did not take a maintenance commit",
        detail=str(exc).splitlines()[0],
        hint="Nothing is lost; maintenance tries again. By hand: pgtide log compact",
    )
