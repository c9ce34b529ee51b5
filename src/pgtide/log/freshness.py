"""How old the log's knowledge of the source is.

After a commit with rows it is as old as the newest of them. After a commit that carries a
position alone (nothing to log, the server said so) it is as old as that commit.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow.compute as pc

from pgtide.log.files import file_missing
from pgtide.log.order import open_pieces
from pgtide.log.snapshot import Snapshot
from pgtide.log.source import app_id
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path

_LOOK_BACK = 50  # versions; between two commits of the writer there are a few of maintenance


def known_until(changes: Storage, snapshot: Snapshot) -> datetime | None:
    """The moment up to which the log holds what the source did; None when it cannot be told."""
    for version in range(snapshot.version, max(-1, snapshot.version - _LOOK_BACK), -1):
        content = changes.read(commit_path(version))
        if content is None:
            return None
        actions = [json.loads(line) for line in content.splitlines()]
        if any(a.get("txn", {}).get("appId") == app_id(snapshot.source.slot) for a in actions):
            if any("add" in action for action in actions):
                return _newest_commit(changes, snapshot)
            stamps = [a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a]
            return datetime.fromtimestamp(stamps[0] / 1000, UTC) if stamps else None
    return None


def _newest_commit(changes: Storage, snapshot: Snapshot) -> datetime | None:
    newest = max(snapshot.files, key=lambda file: file.high, default=None)
    if newest is None:
        return None
    try:
        times = [
            pc.max(piece.read(["committed_at"]).column(0)).as_py()
            for piece in open_pieces(changes, newest)
            if piece.high == newest.high
        ]
    except FileNotFoundError as exc:
        raise file_missing(exc) from exc
    return max((time for time in times if time is not None), default=None)
