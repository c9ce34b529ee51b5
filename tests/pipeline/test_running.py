"""Running a pipeline: parked tables and their return, replay, and what is refused."""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pgtide.config import Config
from pgtide.errors import ConfigError, LogGap, PipelineError, TargetError, Unrepresentable
from pgtide.log.readers import list_readers
from pgtide.log.refreshes import RefreshStore
from pgtide.log.retention import retain
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.pipeline import replaying
from pgtide.pipeline.delivery import Delivery
from pgtide.pipeline.lease import Lease, holder_of
from pgtide.pipeline.replaying import check_replay, replay, start_of, target_tables
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import Parked, Resuming, State, now
from pgtide.pipeline.state_file import StateFile, pipeline_names
from pgtide.position import Lsn, Position
from pgtide.sinks.delta.gone import Gone
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until


def configure(captured: Captured, **pipeline: Any) -> Config:
    lake = str(captured.directory / "lake")
    settings = {"sink": {"type": "delta", "path": lake}, **pipeline}
    return Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})


def run(spark: SparkSession, config: Config) -> State:
    return PipelineRun(spark, config, "lake").run(until_current=True)


def mirror(captured: Captured, table: str) -> list[tuple[Any, ...]]:
    spark = SparkSession.active()
    frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / table))
    names = [name for name in frame.columns if not name.startswith("_pgtide_")]
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)


def source(captured: Captured, table: str) -> list[tuple[Any, ...]]:
    return sorted(captured.execute(f"SELECT * FROM {table}"), key=repr)


def storage(config: Config) -> Storage:
    return Storage(config.log.path, config.log.storage)


def test_a_parked_table_waits_and_comes_back(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE good (id int PRIMARY KEY, day date);\nCREATE TABLE bad (LIKE good);")
    captured.run("ALTER TABLE bad ADD PRIMARY KEY (id)")
    captured.run("INSERT INTO bad VALUES (1, NULL), (2, 'infinity');\nINSERT INTO good VALUES (2);")
    captured.capture()
    # Whatever asks for that value fails, counting what a filter leaves out too.
    passed = {"sql": "day IS NULL OR day > DATE '1900-01-01'"}
    rules = [{"table": "public.*", "filter": passed}]
    config = configure(captured, on_error="park", rules=rules)
    parked = run(spark, config).parked
    assert set(parked) == {"public.bad"}
    assert "infinity" not in str(parked)
    assert mirror(captured, "good") == source(captured, "good")
    kept = {reader.name: reader.position for reader in list_readers(storage(config))}
    assert kept["pipeline.lake.parked"] == parked["public.bad"].position < kept["pipeline.lake"]

    # What the pipeline has come to still ends with that value: the table is parked again. What
    # comes is left for later, under the table's new name too.
    captured.run("UPDATE bad SET day = '2024-02-02' WHERE id = 2;\nDELETE FROM good;")
    captured.run("ALTER TABLE bad RENAME TO worse;\nINSERT INTO worse VALUES (4, NULL);")
    captured.capture()
    file = StateFile(storage(config), "lake")
    file.ask_resume("public.bad")
    state = run(spark, config)
    assert not file.requests()
    assert set(state.parked) == {"public.bad", "public.worse"}
    assert state.resumed == 1
    assert state.parked["public.bad"].since > parked["public.bad"].since
    assert mirror(captured, "good") == []

    # By now the pipeline knows the value that took its place; what comes flows as before.
    captured.run("INSERT INTO worse VALUES (3, '2024-03-03');\n")
    captured.capture()
    file.ask_resume(None)
    state = run(spark, config)
    assert not state.parked
    assert mirror(captured, "worse") == source(captured, "worse")
    assert [reader.name for reader in list_readers(storage(config))] == ["pipeline.lake"]


def test_what_spark_hears_of_a_failure(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there is one: a long text made it end in a stack overflow when it was to stop."""
    heard: list[str | None] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None: ...
        def onQueryProgress(self, event: QueryProgressEvent) -> None: ...
        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            heard.append(event.exception)

    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    config = configure(captured)
    captured.capture()
    run(spark, config)
    captured.run("INSERT INTO t VALUES (2);")
    captured.capture()

    def refuse(*_: object) -> None:
        raise TargetError("what only we need to know")

    monkeypatch.setattr(Delivery, "deliver", refuse)
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        with pytest.raises(TargetError, match="only we"):
            run(spark, config)
        wait_until(lambda: bool(heard))
    finally:
        spark.streams.removeListener(listener)
    assert heard[0] is not None
    assert "only we" not in heard[0]


def test_replay_and_what_retention_took(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY, note text);\nCREATE TABLE u (id int);")
    captured.run("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n;\n")
    captured.capture()
    config = configure(captured, tables=["public.t"])
    before = run(spark, config)
    captured.run("UPDATE t SET note = 'new' WHERE id < 5;\nDELETE FROM t WHERE id > 15;")
    captured.capture()
    foreign = captured.directory / "lake" / "public" / "u" / "keep"
    foreign.parent.mkdir()
    foreign.write_text("someone else's")
    assert target_tables(config, "lake") == ["public/t"]
    spark.sql(f"DELETE FROM delta.`{captured.directory}/lake/public/t`")
    state = replay(spark, config, "lake")
    assert state.incarnation != before.incarnation
    assert mirror(captured, "t") == source(captured, "t")
    assert foreign.exists()

    # All of it was delivered, so retention may take it; only what comes is left to begin with.
    changes, readers = storage(config).child("changes"), list_readers(storage(config))
    assert retain(changes, open_table(changes), readers, 0.0, now=time.time() + 3 * 86_400)
    captured.run("INSERT INTO t VALUES (100, 'later');\n")
    captured.capture()
    assert run(spark, config).position > state.position
    past = configure(captured, sink={"type": "delta", "path": "past", "mode": "history"})
    with pytest.raises(LogGap) as raised:
        replay(spark, past, "lake")
    kept = captured.log.snapshot().complete_from
    assert f"--from {kept}" in raised.value.hint
    assert mirror(captured, "t") == source(captured, "t"), "nothing was deleted"
    replay(spark, config, "lake", Position(kept))
    assert mirror(captured, "t") == source(captured, "t")

    other = configure(captured, sink={"type": "delta", "path": str(captured.directory / "pond")})
    with pytest.raises(PipelineError, match="no target to go on with"):
        replay(spark, other, "lake", Position(kept))
    StateFile(storage(config), "lake").drop()
    with pytest.raises(LogGap) as raised:
        run(spark, other)
    assert "pgtide replay --pipeline lake. " in raised.value.hint


@pytest.mark.parametrize("mode", ["mirror", pytest.param("scd2", marks=pytest.mark.slow)])
def test_tables_of_a_log_that_was_cut_are_read_again(
    spark: SparkSession, captured: Captured, mode: str
) -> None:
    """Nothing else has their first rows, nor a large value that was not sent since."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 0, repeat('x', 9000) FROM generate_series(1, 9) i;
CREATE TABLE gone (id int PRIMARY KEY, n int);
INSERT INTO gone VALUES (1, 0), (2, 0);
"""
    )
    captured.capture()
    changes = storage(captured.config).child("changes")
    assert retain(changes, open_table(changes), [], 0.0, now=time.time() + 3 * 86_400)
    captured.run(
        """UPDATE t SET n = 1 WHERE id < 4;
UPDATE t SET id = 20 WHERE id = 5;
DELETE FROM t WHERE id = 6;
INSERT INTO t VALUES (10, 0, 'y');
UPDATE gone SET n = 1 WHERE id = 1;
DROP TABLE gone;
CREATE TABLE later (id int PRIMARY KEY);
INSERT INTO later VALUES (1);
"""
    )
    captured.capture()
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "mode": mode}
    config = configure(captured, sink=sink)
    pond = configure(captured, sink=sink | {"path": str(captured.directory / "pond")})
    with pytest.raises(LogGap, match="no longer holds everything"):
        run(spark, pond)
    assert check_replay(config, "lake", None) == ["public.later", "public.t"]
    replay(spark, config, "lake")
    assert target_tables(config, "lake") == ["public/later", "public/t"], "no half of the other"
    store = RefreshStore(storage(config))

    def read() -> bool:
        captured.capture()
        return not any(store.is_open(request.id) for request in store.requests())

    wait_until(read, "the tables to be read")
    run(spark, config)
    lake = spark.read.format("delta").load(f"{captured.directory}/lake/public/t")
    current = lake.filter("is_current") if mode == "scd2" else lake
    found = current.select("id", "n", "long").orderBy("id").collect()
    assert [tuple(row) for row in found] == captured.execute("SELECT * FROM t ORDER BY id")

    captured.run("CREATE TABLE bag (n int);\n")
    with pytest.raises(LogGap, match="cannot be read again") as refused:
        check_replay(configure(captured), "lake", None)
    assert "public.bag" in refused.value.detail


def test_a_replay_brings_back_what_was_dropped(spark: SparkSession, captured: Captured) -> None:
    """A lake that is built anew goes by the settings of now."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\nDROP TABLE t;")
    captured.capture()
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    run(spark, configure(captured, sink=sink | {"dropped_tables": "drop"}))
    assert target_tables(configure(captured), "lake") == []
    other_log = Gone(Storage(str(captured.directory / "lake")), "1/other/pgtide")
    other_log.note(1, Position(Lsn(9)))
    replay(spark, configure(captured, sink=sink), "lake")
    assert mirror(captured, "t") == [(1,)]
    assert other_log.since(1) is not None


def test_replay_from_a_time(captured: Captured) -> None:
    """At the first transaction that was committed then or later, if nothing since then is gone."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    captured.run("INSERT INTO t VALUES (2);\nINSERT INTO t VALUES (3), (4);\n")
    captured.capture()
    config = captured.config
    one, two, three, _ = captured.events("insert")
    assert one.committed_at is not None
    assert two.committed_at is not None
    assert three.committed_at is not None
    assert start_of(config, None) is None
    assert start_of(config, "16/B374D848:3") == Position(Lsn.parse("16/B374D848"), 3)
    for event in (one, two, three):
        assert event.committed_at is not None
        assert start_of(config, event.committed_at.isoformat()) == Position(event.position.lsn)
    just_after = two.committed_at + timedelta(microseconds=1)
    kathmandu = just_after.astimezone(timezone(timedelta(hours=5, minutes=45)))
    naive = just_after.astimezone(UTC).replace(tzinfo=None)  # is UTC
    assert start_of(config, str(kathmandu)) == Position(three.position.lsn)
    assert start_of(config, str(naive)) == Position(three.position.lsn)
    assert start_of(config, "1999-12-31") == Position(captured.events()[0].position.lsn)
    with pytest.raises(ConfigError, match="nothing was committed since"):
        start_of(config, "2999-12-31")
    with pytest.raises(ConfigError, match="--from cannot be 'yesterday'"):
        start_of(config, "yesterday")

    changes = storage(config).child("changes")
    retain(changes, open_table(changes), [], 0.0, now=time.time() + 3 * 86_400)
    captured.run("INSERT INTO t VALUES (5);\nINSERT INTO t VALUES (6);\n")
    captured.capture()
    five, six = captured.events("insert")
    assert six.committed_at is not None
    assert start_of(config, str(six.committed_at)) == Position(six.position.lsn)
    assert five.committed_at is not None
    for moment in (two.committed_at, five.committed_at):
        with pytest.raises(LogGap, match="does not go back far enough") as raised:
            start_of(config, str(moment))
        assert f"--from {captured.log.snapshot().complete_from}" in raised.value.hint


def test_retention_waits_for_a_replay(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run while the old target is being deleted, and no reader needed the log until then."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1), (2);\n")
    captured.capture()
    config = configure(captured)
    run(spark, config)
    log = storage(config)

    def clear_slowly(*arguments: Any) -> None:
        changes = log.child("changes")
        readers = list_readers(log)
        assert not retain(changes, open_table(changes), readers, 0.0, now=time.time() + 3 * 86_400)
        clear(*arguments)

    clear = replaying._clear
    monkeypatch.setattr(replaying, "_clear", clear_slowly)
    replay(spark, config, "lake")
    assert mirror(captured, "t") == source(captured, "t")


def test_a_pipeline_runs_once_at_a_time(captured: Captured) -> None:
    log = storage(captured.config)
    assert holder_of(log, "lake") is None
    with Lease(log, "lake"):
        assert holder_of(log, "lake") == f"process {os.getpid()} on {socket.gethostname()}"
        assert holder_of(log, "pond") is None
        with pytest.raises(PipelineError, match="running already") as raised, Lease(log, "lake"):
            pass
        assert str(os.getpid()) in raised.value.detail
    with Lease(log, "lake"):
        pass


def test_state_is_what_was_saved(captured: Captured) -> None:
    file = StateFile(storage(captured.config), "lake")
    assert (file.load(), file.error(), file.requests()) == (None, None, [])
    at = Position(Lsn(7), 3)
    state = State.new(5, at, [Position(Lsn(9), 7), Position.end_of(Lsn(12))])
    state.parked["public.t"] = Parked(at, "message", "detail", "hint", now())
    state.resuming = Resuming(["public.t"], at, Position(Lsn(12)), [Position(Lsn(12))], 1)
    state.batch_at = now()
    file.save(state)
    assert file.load() == state
    file.note_error(Unrepresentable("fact", hint="act"))
    file.ask_resume("public.t")
    assert pipeline_names(storage(captured.config)) == ["lake"]
    assert [request.table for request in file.requests()] == ["public.t"]
    file.drop()
    assert (file.load(), file.error(), file.requests()) == (None, None, [])
