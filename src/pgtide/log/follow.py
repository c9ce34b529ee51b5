"""Following the log: the commits of its Delta log, one after the other, as they appear.

A poll looks for one file by name, so it costs the same whatever the age of the log. Only
files added with ``dataChange`` are news; compaction and retention pass unseen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pgtide.log.snapshot import DataFile, added_file
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path

POLL_LOCAL = (0.003, 0.010)  # seconds between polls: just after a commit, when idle
POLL_REMOTE = (0.020, 0.200)
_CHECK_CLEANED = 1.0  # seconds of silence after which we ask whether the log went on without us


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The next commit's file is gone: clean-up was faster than this reader."""


def news_of(commit: bytes) -> list[DataFile]:
    """The files that a commit, given as its file, added to what the log says."""
    actions = (json.loads(line)["add"] for line in commit.splitlines() if b'"add"' in line[:8])
    return [added_file(action) for action in actions if action["dataChange"]]


class CommitTail:
    """The commits after ``version``."""

    def __init__(self, changes: Storage, version: int) -> None:
        self.version = version
        self._changes = changes
        self._shortest, self._longest = POLL_LOCAL if changes.local is not None else POLL_REMOTE
        self.pause = self._shortest  # seconds to wait before asking again
        self._silence = 0.0

    def next_files(self) -> list[DataFile] | Cleaned | None:
        """The files that the next commit added, None when there is no next commit yet."""
        content = self._changes.read(commit_path(self.version + 1))
        if content is None:
            return self._nothing_yet()
        self.version += 1
        self.pause, self._silence = self._shortest, 0.0
        return news_of(content)

    def _nothing_yet(self) -> Cleaned | None:
        self._silence += self.pause
        self.pause = min(self._longest, self.pause * 1.5)
        if self._silence < _CHECK_CLEANED:
            return None
        self._silence = 0.0
        checkpoint = self._changes.read("_delta_log/_last_checkpoint")
        if checkpoint is None or json.loads(checkpoint)["version"] <= self.version:
            return None
        # Clean-up only removes what a checkpoint covers. The commit may have come meanwhile.
        if self._changes.read(commit_path(self.version + 1)) is not None:
            return None
        return Cleaned()
