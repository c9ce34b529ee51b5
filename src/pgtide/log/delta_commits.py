"""The writer's commits on an object store, by delta-rs.

It knows how to create a file only if there is none on each kind of store, and rejects a commit
by a handle that has not seen the newest ``txn`` of the same application id. The handle is
therefore refreshed only together with the check that the newest one is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from pgtide.log.schema import TABLE_SCHEMA
from pgtide.log.source import app_id, timeline_app_id
from pgtide.log.storage import Storage
from pgtide.log.table import NO_HOOKS, commit_refused, fenced, open_table, read_transaction
from pgtide.position import Lsn


class DeltaCommits:
    """Appends through a handle of delta-rs."""

    def __init__(self, changes: Storage, slot: str, table: DeltaTable) -> None:
        self._changes = changes
        self._slot = slot
        self._table = table
        self._renewed: DeltaTable | None = None
        # Kept here: asking the handle reads files of the log.
        self.position = read_transaction(table, app_id(slot))

    @property
    def version(self) -> int:
        """The newest version that this writer knows."""
        return self._table.version()

    def append(
        self,
        parts: Sequence[AddAction],
        position: Lsn,
        timeline: int,
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Make parts and the new position true together; the store is durable as it answers."""
        self._take_renewed()
        transactions = [
            Transaction(app_id(self._slot), int(position)),
            Transaction(timeline_app_id(self._slot), timeline),
            *(Transaction(name, version) for name, version in (also or {}).items()),
        ]
        try:
            self._table.create_write_transaction(
                list(parts),
                "append",
                TABLE_SCHEMA,
                ["day"],
                commit_properties=CommitProperties(app_transactions=transactions),
                post_commithook_properties=NO_HOOKS,
            )
            self._table.update_incremental()
        except (DeltaError, OSError) as exc:
            raise commit_refused(exc, self._changes) from exc
        self.position = position
        self._take(self._table)

    def reopen(self) -> None:
        """Take a fresh handle."""
        self._take(open_table(self._changes))

    def renew(self) -> None:
        """Have a fresh handle ready, by another thread, for the next ``append`` to take.

        What a commit costs grows with the commits since the checkpoint of its handle's opening.
        """
        self._renewed = open_table(self._changes)

    def _take_renewed(self) -> None:
        table, self._renewed = self._renewed, None
        if table is None:
            return
        try:
            table.update_incremental()  # what we committed since it was opened
        except (DeltaError, OSError) as exc:
            raise commit_refused(exc, self._changes) from exc
        self._take(table)

    def _take(self, table: DeltaTable) -> None:
        if read_transaction(table, app_id(self._slot)) != self.position:
            raise fenced(self._changes)
        self._table = table
