"""Opening a log and reading it: order, positions, values, following, gaps."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pgtide.config import TablePatterns
from pgtide.errors import LogError, LogGap, LogMissing
from pgtide.log.event import UNCHANGED, Event
from pgtide.log.reader import Log
from pgtide.log.schema import TABLE_SCHEMA
from pgtide.position import Lsn, Position


def test_a_path_without_a_log_says_so(tmp_path: Path) -> None:
    with pytest.raises(LogMissing) as caught:
        Log(tmp_path / "nothing")
    assert "pgtide init" in caught.value.hint


def test_facts_of_the_log(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}])
    log = small_log.open()
    assert (log.source.system_identifier, log.source.database, log.source.slot) == (
        "7300000000000000001",
        "shop",
        "pgtide",
    )
    assert log.position == Lsn(1001)
    assert log.end == Position(Lsn(1000), 1)
    assert {shape.name for shape in log.shapes().values()} == {"public.orders", "public.events"}


def test_an_empty_log_has_no_events(small_log: Any) -> None:
    log = small_log.open()
    assert list(log.events()) == []
    assert log.position == Lsn(500)


def test_events_come_by_position_whatever_the_files(small_log: Any) -> None:
    small_log.append([{"lsn": 1010, "seq": 1}, {"lsn": 1000}, {"lsn": 1010, "seq": 0}])
    small_log.append([{"lsn": 1020}])
    assert small_log.positions() == [(1000, 0), (1010, 0), (1010, 1), (1020, 0)]


def test_batches_have_the_logs_columns(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}, {"lsn": 1001}])
    (batch,) = small_log.open().batches()
    assert batch.schema == TABLE_SCHEMA
    assert batch.num_rows == 2


def test_values(small_log: Any) -> None:
    small_log.append(
        [
            {"lsn": 1000, "op": "update", "after": ["1", None, None], "unchanged": [1]},
            {"lsn": 1001, "op": "delete", "before": ["1", None, None], "after": None},
            {
                "lsn": 1002,
                "op": "update",
                "table": "events",
                "shape": 2,
                "before": ["1", None],
                "after": ["1", "{}"],
            },
            {
                "lsn": 1003,
                "op": "message",
                "schema": None,
                "table": None,
                "shape": None,
                "after": None,
                "payload": '{"prefix": "p"}',
            },
        ]
    )
    update, delete, full, message = small_log.open().events()
    assert update.after == {"id": "1", "note": UNCHANGED, "total": None}
    assert update.before is None
    assert delete.before == {"id": "1"}, "NULLs of an old key are not values"
    assert delete.after is None
    assert full.before == {"id": "1", "body": None}, "with identity full a NULL is a NULL"
    assert message.payload == {"prefix": "p"}
    assert message.shape is None


def test_unchanged_is_a_thing_of_its_own() -> None:
    assert repr(UNCHANGED) == "UNCHANGED"
    others: list[object] = [None, "", "unchanged", False]
    assert UNCHANGED not in others
    assert pickle.loads(pickle.dumps(UNCHANGED)) is UNCHANGED
    with pytest.raises(TypeError, match="is UNCHANGED"):
        bool(UNCHANGED)


def test_start_and_tables(small_log: Any) -> None:
    small_log.append([{"lsn": 1000, "seq": seq} for seq in range(4)])
    small_log.append([{"lsn": 1010, "table": "events", "shape": 2, "after": ["1", None]}])
    log = small_log.open()
    some = [
        e.position.seq for e in log.events(Position(Lsn(1000), 2), tables=TablePatterns(["orders"]))
    ]
    assert some == [2, 3]
    assert [e.table for e in log.events(tables=TablePatterns(["*.*", "!orders"]))] == ["events"]
    assert list(log.events(log.end)) == []


def test_a_row_that_does_not_fit_its_shape_is_an_error(small_log: Any) -> None:
    small_log.append([{"lsn": 1000, "after": ["1"]}])
    with pytest.raises(LogError, match="does not fit its shape"):
        list(small_log.open().events())


def test_a_row_of_an_unknown_shape_is_an_error(small_log: Any) -> None:
    small_log.append([{"lsn": 1000, "shape": 99}])
    with pytest.raises(LogError, match="unknown shape"):
        list(small_log.open().events())


class Follower:
    """Collects what a following reader sees, in a thread."""

    def __init__(self, log: Log, **options: Any) -> None:
        self.seen: list[Event] = []
        self.times: list[float] = []
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(log, options), daemon=True)
        self._thread.start()

    def _run(self, log: Log, options: dict[str, Any]) -> None:
        try:
            for event in log.events(follow=True, stop=self._done.is_set, **options):
                self.seen.append(event)
                self.times.append(time.perf_counter())
        except BaseException as exc:
            self.error = exc

    def wait_for(self, count: int, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while len(self.seen) < count and self.error is None:
            assert time.monotonic() < deadline, f"saw {len(self.seen)} of {count}"
            time.sleep(0.002)
        if self.error:
            raise self.error

    def stop(self) -> list[tuple[int, int]]:
        self._done.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error
        return [(int(e.position.lsn), e.position.seq) for e in self.seen]


def test_following_sees_each_commit_soon(small_log: Any) -> None:
    small_log.append([{"lsn": 990}])
    follower = Follower(small_log.open())
    follower.wait_for(1)
    delays = []
    for lsn in range(1000, 1040):
        small_log.append([{"lsn": lsn}])
        committed = time.perf_counter()
        follower.wait_for(lsn - 998)
        delays.append(follower.times[-1] - committed)
    assert follower.stop() == [(990, 0), *((lsn, 0) for lsn in range(1000, 1040))]
    assert sorted(delays)[len(delays) // 2] < 0.030


def test_following_from_now_skips_what_is_there(small_log: Any) -> None:
    small_log.append([{"lsn": 1000}])
    log = small_log.open()
    follower = Follower(log, start=log.end)
    small_log.append([{"lsn": 1010}])
    follower.wait_for(1)
    assert follower.stop() == [(1010, 0)]


def test_a_start_that_retention_dropped_is_a_gap(small_log: Any, day_later: Any) -> None:
    from pgtide.log.retention import retain
    from pgtide.log.table import open_table

    small_log.append([{"lsn": 1000}])
    small_log.append([{"lsn": 1010, "committed_at": day_later}])
    now = day_later.replace(hour=23).timestamp()
    assert retain(small_log.changes, open_table(small_log.changes), [], 3600, now=now) == 1
    log = small_log.open()
    with pytest.raises(LogGap) as caught:
        next(log.events(Position(Lsn(1000))))
    assert "--from beginning" in caught.value.hint
    assert small_log.positions() == [(1010, 0)]
    assert [e.position.lsn for e in log.events(Position(Lsn(1001)))] == [1010]


def test_summary(small_log: Any) -> None:
    small_log.commit_each(3)
    small_log.append([{"lsn": 2000, "table": "events", "shape": 2, "after": ["1", None]}])
    summary = small_log.open().summary()
    assert summary["events"] == 7
    assert summary["files"] == 4
    assert summary["tables"] == [
        {"schema": "public", "table": "events", "events": 1},
        {"schema": "public", "table": "orders", "events": 6},
    ]
    assert summary["position"] == "0/7D1"
    assert [shape["id"] for shape in summary["shapes"]] == [1, 2]
