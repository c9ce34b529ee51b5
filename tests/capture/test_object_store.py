"""The log in an object store: the same rows, the same fence."""

from __future__ import annotations

import time

import pytest

from pgtide.capture.engine import IN_HASTE_PATIENCE_S
from pgtide.errors import LogDenied, LogFenced
from pgtide.log.maintenance import Maintenance
from pgtide.log.reader import Log
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.s3 import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.s3]


@pytest.fixture
def captured(make_captured: MakeCaptured, object_store: ObjectStore) -> Captured:
    return make_captured(log={"path": object_store.path(), "storage": object_store.options})


def ids(captured: Captured) -> list[str | None]:
    log = Log(captured.config.log.path, captured.config.log.storage)
    return [event.after["id"] for event in log.events() if event.after]  # type: ignore[misc]


@pytest.mark.parametrize("gear", ["live", "bulk"])
def test_rows_arrive_and_survive_compaction(captured: Captured, gear: str) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    expected = []
    for start in range(0, 60, 10):
        captured.execute(f"INSERT INTO t SELECT generate_series({start}, {start + 9})")
        captured.capture(gear)
        expected += [str(number) for number in range(start, start + 10)]
    assert ids(captured) == expected
    config = captured.config.log
    Maintenance(config.path, config.storage, None).run_fully()
    assert ids(captured) == expected
    captured.execute("INSERT INTO t VALUES (1000)")
    captured.capture(gear)
    assert ids(captured) == [*expected, "1000"]


def test_wrong_keys_end_it(captured: Captured) -> None:
    """They will not become right; a store that does not answer is tried for a minute."""
    log = captured.config.log
    storage = {**log.storage, "AWS_SECRET_ACCESS_KEY": "wrong"}
    wrong = log.model_copy(update={"storage": storage})
    began = time.monotonic()
    with pytest.raises(LogDenied):
        captured.capture(config=captured.config.model_copy(update={"log": wrong}))
    assert time.monotonic() - began < IN_HASTE_PATIENCE_S / 2


def test_a_second_writer_is_fenced(captured: Captured) -> None:
    config = captured.config.log
    first = LogWriter(config.path, config.storage, captured.config.source.slot)
    second = LogWriter(config.path, config.storage, captured.config.source.slot)
    position = first.position
    second.commit([], Lsn(position + 8), second.timeline)
    with pytest.raises(LogFenced):
        first.commit([], Lsn(position + 16), first.timeline)
    third = LogWriter(config.path, config.storage, captured.config.source.slot)
    assert third.position == position + 8
