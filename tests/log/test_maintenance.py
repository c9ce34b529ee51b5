"""Maintenance beside a writer and a follower: nothing twice, nothing missing, nothing slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pgtide.log import maintenance
from pgtide.log.compaction import compact
from pgtide.log.maintenance import Maintenance, checkpoint
from pgtide.log.retention import clean, sweep
from pgtide.log.table import open_table
from pgtide.position import Lsn, Position


def test_a_round_comes_every_so_many_commits(small_log: Any) -> None:
    now = 0.0
    upkeep = Maintenance(small_log.path, None, None, clock=lambda: now)
    assert not upkeep.due(maintenance.ROUND_COMMITS - 2)
    small_log.commit_each(19)
    outcome = upkeep.run_once()
    assert (outcome.checkpoint, outcome.files_merged) == (19, 19)
    version = upkeep.run_once().checkpoint
    assert version == 20, "of the merge"
    assert upkeep.run_once().checkpoint is None, "there is nothing new"
    assert not upkeep.due(version + maintenance.ROUND_COMMITS - 1)
    assert upkeep.due(version + maintenance.ROUND_COMMITS)
    now += maintenance.RETAIN_SECONDS
    assert upkeep.due(version)
    assert not upkeep.due(version, busy=True)


def test_files_are_merged_once_they_have_settled(small_log: Any) -> None:
    upkeep = Maintenance(small_log.path, None, None)
    small_log.commit_each(20)
    future = datetime.now(UTC) + timedelta(days=1)
    small_log.append([{"lsn": 2000}], logged_at=future)  # a clock that was wrong
    small_log.append([{"lsn": 2010}], logged_at=datetime.now(UTC))
    assert upkeep.run_once(busy=True).files_merged == 0
    assert upkeep.run_once().files_merged == 21, "the tail stays as it is for a while"


def test_retention_runs_by_itself(small_log: Any) -> None:
    now = 0.0
    upkeep = Maintenance(small_log.path, None, 86_400.0, clock=lambda: now)
    small_log.commit_each(3)  # years old by now
    assert upkeep.run_once().files_dropped == 0
    now += maintenance.RETAIN_SECONDS
    assert upkeep.run_once().files_dropped == 3


def test_only_who_knows_the_files_in_use_removes_orphans(small_log: Any) -> None:
    """`pgtide log compact` cannot know the parts of a transaction that capture is receiving."""
    now = 0.0
    names = ("day=2026-03-01/part.parquet", "day=2026-03-01/orphan.parquet")
    small_log.commit_each(2)
    part, orphan = (Path(small_log.changes.root, name) for name in names)
    for path in (part, orphan):
        path.write_bytes(b"written days ago")
        os.utime(path, (0, 0))
    assert Maintenance(small_log.path, None, None).run_fully().orphans_removed == 0
    capture = Maintenance(small_log.path, None, None, in_use=lambda: names[:1], clock=lambda: now)
    now += maintenance.SWEEP_SECONDS
    assert capture.run_once().orphans_removed == 1
    assert part.exists()
    assert not orphan.exists()


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
from pgtide.log.table import open_table
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
