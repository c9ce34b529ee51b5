"""Maintenance beside a writer and a follower: nothing twice, nothing missing, nothing slow."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pgtide.log import maintenance
from pgtide.log.compaction import compact
from pgtide.log.maintenance import Maintenance, checkpoint
from pgtide.log.retention import clean, sweep
from pgtide.log.snapshot import open_table
from pgtide.position import Lsn, Position


def test_checkpoints_come_every_so_many_commits(small_log: Any) -> None:
    upkeep = Maintenance(small_log.path, None, None)
    assert upkeep.run_once().checkpoint is None
    small_log.commit_each(19)
    assert upkeep.due(small_log.writer.version)
    assert upkeep.run_once().checkpoint == small_log.writer.version
    assert not upkeep.due(small_log.writer.version + 19)
    assert upkeep.due(small_log.writer.version + 20)


def test_files_are_merged_once_they_have_settled(small_log: Any) -> None:
    now = 0.0
    upkeep = Maintenance(small_log.path, None, None, clock=lambda: now)
    small_log.commit_each(40)
    merged = []
    for _ in range(5):
        now += maintenance.COMPACT_SECONDS + 0.1
        merged.append(upkeep.run_once().files_merged)
    assert merged[0] == 0, "the tail stays as it is for a while"
    assert sum(merged) == 40


def test_retention_runs_by_itself(small_log: Any) -> None:
    now = 0.0
    upkeep = Maintenance(small_log.path, None, 86_400.0, clock=lambda: now)
    small_log.commit_each(3)  # years old by now
    now += maintenance.RETAIN_SECONDS
    assert upkeep.run_once().files_dropped == 3


def test_run_fully_does_everything_at_once(small_log: Any) -> None:
    small_log.commit_each(5)
    outcome = Maintenance(small_log.path, None, None).run_fully()
    assert outcome.files_merged == 5
    assert outcome.checkpoint is not None


def test_writer_follower_and_maintenance_together(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything at once, with clean-up far more eager than in real life."""
    monkeypatch.setattr("pgtide.log.compaction.TIER_UNITS", (4, 2, 2, 2, 2))
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSIONS", 10)
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSION_SECONDS", 0.5)
    monkeypatch.setattr("pgtide.log.retention.KEEP_FILES", 2.0)
    expected = [(lsn, seq) for lsn in range(1000, 1150) for seq in (0, 1)]
    done = threading.Event()
    seen: list[tuple[int, int]] = []
    failures: list[BaseException] = []

    def guarded(run: Any) -> threading.Thread:
        def body() -> None:
            try:
                run()
            except BaseException as exc:
                failures.append(exc)
                done.set()

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def write() -> None:
        for lsn in range(1000, 1150):
            small_log.append([{"lsn": lsn, "seq": seq} for seq in (0, 1)])

    def follow() -> None:
        for event in small_log.open().events(follow=True, stop=done.is_set):
            seen.append((int(event.position.lsn), event.position.seq))

    def maintain() -> None:
        table = open_table(small_log.changes)
        while not done.is_set():
            table.update_incremental()
            end = small_log.open().end
            compact(small_log.changes, table, end)
            checkpoint(small_log.changes, table)
            clean(small_log.changes, [])

    threads = [guarded(follow), guarded(maintain), guarded(write)]
    deadline = time.monotonic() + 60
    while len(seen) < len(expected) and not failures and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join(20)
    assert not failures, failures
    assert seen == expected
    assert small_log.positions() == expected


def test_a_follower_that_clean_up_overtook_goes_on(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.log.retention.KEEP_VERSIONS", 0)
    small_log.commit_each(2)
    events = small_log.open().events(follow=True)
    seen = [next(events).position for _ in range(4)]
    small_log.commit_each(30, first=2000)
    table = open_table(small_log.changes)
    compact(small_log.changes, table, Position(Lsn(10**9)), everything=True)
    checkpoint(small_log.changes, table)
    assert clean(small_log.changes, [], now=time.time() + 60) > 0
    seen += [next(events).position for _ in range(60)]
    assert [(int(p.lsn), p.seq) for p in seen] == small_log.positions()


_KILLED = """
import os, signal, sys
from pgtide.log import compaction
from pgtide.log.snapshot import open_table
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position

compaction.commit_maintenance = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
changes = Storage(sys.argv[1]).child("changes")
compaction.compact(changes, open_table(changes), Position(Lsn(10**9)), everything=True)
"""


def _count_files(log: Any) -> int:
    return len(list(Path(log.changes.root).glob("day=*/*")))


def test_a_kill_before_the_commit_leaves_only_orphans(small_log: Any) -> None:
    small_log.commit_each(3)
    positions = small_log.positions()
    killed = subprocess.run([sys.executable, "-c", _KILLED, small_log.path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert small_log.positions() == positions
    assert _count_files(small_log) == 4
    assert sweep(small_log.changes, keep=0, now=time.time() + 1) == 1
    assert _count_files(small_log) == 3
    assert small_log.positions() == positions
