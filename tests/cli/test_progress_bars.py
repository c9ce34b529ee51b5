"""What commands draw on a terminal while they work."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from pgtide.cli.run_progress import conclude_member
from pgtide.cli.snapshot_progress import BAR_INTERVAL_S, SnapshotReporter
from pgtide.cli.verify_progress import VerifyReporter
from pgtide.errors import TargetError
from pgtide.pipeline.state import Parked, State, now
from pgtide.pipeline.supervisor import Member
from pgtide.position import Lsn, Position
from pgtide.snapshot.progress import SnapshotProgress, TableProgress


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")


def test_a_bar_for_each_table_of_a_snapshot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_terminal(monkeypatch)
    clock = 100.0
    watch = SimpleNamespace(monotonic=lambda: clock)
    monkeypatch.setattr("pgtide.cli.snapshot_progress.time", watch)
    big, small = TableProgress(bytes=1000), TableProgress(bytes=10, bytes_done=10, rows=1)
    progress = SnapshotProgress("copying", tables={"public.big": big, "public.small": small})
    with SnapshotReporter(quiet=False) as told:
        for done in (0, 250, 500):
            big.bytes_done, big.rows = done, 10 * done
            clock += 4 * BAR_INTERVAL_S
            told(progress)
    drawn = capsys.readouterr().err
    assert re.search(r"public\.big .*━.* 5000 rows 2500/s .*[\d-]:[\d-]{2}:[\d-]{2}", drawn)
    assert "public.small" not in drawn  # it has all of its rows


def test_a_bar_for_each_table_that_is_verified(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_terminal(monkeypatch)
    with VerifyReporter(quiet=False) as reporter:
        tell = reporter.telling_of("lake")
        for done in (0, 1, 2):
            tell("public.t", done, 4)
    assert re.search(r"lake: public\.t .*━.*[\d-]:[\d-]{2}:[\d-]{2}", capsys.readouterr().err)


def test_a_pipeline_that_failed_says_all_of_it_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = TargetError("a row is not there", detail='In public.t, key {"id": "1"}.', hint="Do.")
    conclude_member(Member("lake", status="failed", error=error))
    said = '✗ lake failed: a row is not there\n    In public.t, key {"id": "1"}.\n    Do.\n'
    assert capsys.readouterr().out == said


def test_a_table_that_is_parked_says_which_row_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    state = State("i", 0, [], Position(Lsn(2)))
    at = Position(Lsn(1))
    state.parked["public.t"] = Parked(at, "refused", 'In public.t, key {"id": "1"}.', "Do.", now())
    conclude_member(Member("lake", status="current", state=state))
    said = '✗ lake parked public.t: refused\n    In public.t, key {"id": "1"}.\n    Do.\n'
    said += "    Then: pgtide resume --pipeline lake --table public.t\n"
    assert capsys.readouterr().out.endswith(said)
