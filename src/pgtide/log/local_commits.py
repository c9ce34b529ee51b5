"""The writer's commits on a local path: a commit file that appears whole, or not at all.

delta-rs would replay the Delta log twice for each commit, and does not fsync; that was 10 of
the 14 ms that a flush took. The protocol asks for little: the file of the next version, created
only if there is none. Every commit after our own last one is therefore seen on the way to the
next: the fence of ``LogWriter`` is that none of them carries our application id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.transaction import AddAction

from pgtide.errors import LogFenced, LogUnavailable
from pgtide.log.checksums import Checksums
from pgtide.log.datafile import now_ms
from pgtide.log.files import delete
from pgtide.log.source import app_id, timeline_app_id
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path, fenced, open_table, read_transaction
from pgtide.position import Lsn
from pgtide.version import __version__

# A process that was killed may have left commits that are visible and not yet durable: one of
# its own and one run of maintenance's.
_SYNC_VERSIONS = 20


class LocalCommits:
    """Appends to the Delta log of a local table."""

    def __init__(self, changes: Storage, slot: str, table: DeltaTable) -> None:
        self._changes = changes
        self._slot = slot
        self.version = table.version()
        self.position = read_transaction(table, app_id(slot))
        self._checksums = Checksums(changes, table)
        for version in range(max(0, self.version - _SYNC_VERSIONS), self.version + 1):
            if changes.exists(commit_path(version)):
                changes.sync(commit_path(version))

    def append(
        self,
        parts: Sequence[AddAction],
        position: Lsn,
        timeline: int,
        also: Mapping[str, int] | None = None,
    ) -> None:
        """Make parts and the new position true together, durably."""
        self._changes.require("_delta_log")
        if not self._changes.exists(commit_path(self.version)):
            self.reopen()
        transactions = {
            app_id(self._slot): int(position),
            timeline_app_id(self._slot): timeline,
            **(also or {}),
        }
        actions = list(_actions(parts, transactions))
        content = "\n".join(map(_line, actions)).encode()
        version = self.version + 1
        while not self._changes.create(commit_path(version), content):
            self._pass(version)
            version += 1
        self.position = position
        self._saw(version, actions)
        # Was the name free because clean-up had removed another writer's commit? It removes the
        # oldest first, so then the one before is gone as well.
        if not self._changes.exists(commit_path(version - 1)):
            try:
                self.reopen()
            except LogFenced:
                # A follower must not find it. Nobody needs it: clean-up leaves no version behind
                # that its checkpoint does not cover.
                delete(self._changes, commit_path(version))
                raise
        else:
            self._checksums.write(version)

    def reopen(self) -> None:
        """Find the newest version anew; the newest position must be our own."""
        table = open_table(self._changes)
        if read_transaction(table, app_id(self._slot)) != self.position:
            raise fenced(self._changes)
        self.version = table.version()
        self._checksums = Checksums(self._changes, table)

    def renew(self) -> None:
        """Nothing: a commit does not cost more with the age of a handle."""

    def _pass(self, version: int) -> None:
        """Let a commit of maintenance be, and stop at any other."""
        content = self._changes.read(commit_path(version))
        if content is None:
            raise LogUnavailable(
                "a commit of the log went while it was read",
                detail=f"Version {version} was cleaned up.",
                hint="Capture opens the log again and goes on if it can.",
            )
        actions = [json.loads(line) for line in content.splitlines()]
        for action in actions:
            if action.get("txn", {}).get("appId") == app_id(self._slot):
                raise fenced(self._changes)
            if not action.keys().isdisjoint(("metaData", "protocol")):
                raise LogUnavailable(
                    "the log's table was altered",
                    detail=f"Version {version} changes its schema, properties or protocol.",
                    hint="Capture opens the log again and goes on if it can.",
                )
        # Ours builds on it, so it must not be lost alone.
        self._changes.sync(commit_path(version))
        self._saw(version, actions)

    def _saw(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            self._checksums.see(action)
        self.version = version


def _actions(
    parts: Iterable[AddAction], transactions: dict[str, int]
) -> Iterator[dict[str, dict[str, Any]]]:
    yield {
        "commitInfo": {
            "timestamp": now_ms(),
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["day"]'},
            "engineInfo": f"pgtide/{__version__}",
            "isBlindAppend": True,
        }
    }
    for part in parts:
        yield {
            "add": {
                "path": part.path,
                "partitionValues": dict(part.partition_values),
                "size": part.size,
                "modificationTime": part.modification_time,
                "dataChange": part.data_change,
                "stats": part.stats,
            }
        }
    for name, version in transactions.items():
        yield {"txn": {"appId": name, "version": version}}


def _line(action: Mapping[str, Any]) -> str:
    return json.dumps(action, separators=(",", ":"))
