"""Standard output gets every event, one per line, in the order of the log."""

from __future__ import annotations

import json
import os
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.config.sinks import StdoutSettings
from pgtide.errors import PipelineError
from pgtide.log.storage import Storage
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.sinks.chunks import Chunk
from pgtide.sinks.stdout import StdoutSink
from tests.fixtures.capture import Captured
from tests.sinks.lakes import lose_checkpoint


def pipeline(spark: SparkSession, captured: Captured, **settings: Any) -> PipelineRun:
    config = Config.model_validate({**captured.settings, "pipelines": {"out": settings}})
    return PipelineRun(spark, config, "out")


def test_order_across_tables(
    spark: SparkSession,
    captured: Captured,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured.run(
        """CREATE TABLE a (id int PRIMARY KEY, name text);
CREATE TABLE b (id int PRIMARY KEY);
INSERT INTO a SELECT n, 'ä' || n FROM generate_series(1, 100) n;
INSERT INTO b SELECT n FROM generate_series(1, 100) n;
DELETE FROM a WHERE id = 1;
SELECT pg_logical_emit_message(true, 'app', 'hello');
"""
    )
    captured.capture()
    monkeypatch.setattr("pgtide.sinks.chunks.PARTITION_ROWS", 50)  # several, as in a large batch
    rules = [{"table": "public.a", "transform": {"column": "name", "sql": "upper(name)"}}]
    sink = {"type": "stdout", "envelope": "debezium"}
    pipeline(spark, captured, sink=sink, rules=rules).run(until_current=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    seen = [(line["source"]["lsn"], line["source"]["table"], line["op"]) for line in lines]
    ops = {"insert": "c", "delete": "d"}
    assert seen == [
        (int(event.position.lsn), event.table or "", ops.get(event.op, "m"))
        for event in captured.events()
    ]
    names = [
        line["after"]["name"]
        for line in lines
        if line["op"] == "c" and line["source"]["table"] == "a"
    ]
    assert names == [f"Ä{n}" for n in range(1, 101)]

    captured.run("INSERT INTO b VALUES (1000);\n")
    captured.capture()
    pipeline(spark, captured, sink=sink, rules=rules).run(until_current=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["after"] == {"id": 1000}


def test_each_batch_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a pipe has a batch's events at its end, not when some buffer is full."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    line, at = b'{"op": "insert"}\n', Position(Lsn(7))
    with os.fdopen(writing, "w") as piped:
        monkeypatch.setattr("sys.stdout", piped)
        sink = StdoutSink(StdoutSettings(type="stdout"))
        monkeypatch.setattr(sink, "_chunks", lambda batch: iter([Chunk(0, at, at, line)]))
        sink.write(cast(Batch, None))
        assert os.read(reading, 100) == line
    os.close(reading)


def test_reader_leaves(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.run("CREATE TABLE a (id int PRIMARY KEY);\nINSERT INTO a VALUES (1);\n")
    captured.capture()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as unread:
        monkeypatch.setattr("sys.stdout", unread)
        state = pipeline(spark, captured, sink={"type": "stdout"}).run(until_current=True)
    assert state.batches == 0, "what nobody read is not done"


@pytest.mark.slow
def test_a_table_that_fails_is_parked(
    spark: SparkSession, captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    captured.run("CREATE TABLE good (id int PRIMARY KEY);\nCREATE TABLE bad (id int PRIMARY KEY);")
    captured.run("INSERT INTO good VALUES (1);\nINSERT INTO bad VALUES (0), (1);")
    captured.run("INSERT INTO good VALUES (2);")
    captured.capture()

    def broken(sql: str) -> dict[str, Any]:
        rule = {"table": "public.bad", "filter": {"sql": sql}}
        return {"sink": {"type": "stdout"}, "rules": [rule], "on_error": "park"}

    def printed() -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(line["table"], line["after"]["id"]) for line in lines if line["op"] == "insert"]

    # One fails when its rows are read, one before.
    for sql in ("1 / id > 0", "no_such_column > 0"):
        state = pipeline(spark, captured, **broken(sql)).run(until_current=True)
        assert set(state.parked) == {"public.bad"}
        assert printed() == [("good", "1"), ("good", "2")]
        lose_checkpoint(captured, "out")

    state = pipeline(spark, captured, **broken("1 / id > 0")).run(until_current=True)
    capsys.readouterr()
    StateFile(Storage(captured.config.log.path), "out").ask_resume("public.bad")
    state = pipeline(spark, captured, **broken("id >= 0")).run(until_current=True)
    assert not state.parked
    assert printed() == [("bad", "0"), ("bad", "1")]

    lose_checkpoint(captured, "out")
    stopping = pipeline(spark, captured, **{**broken("1 / id > 0"), "on_error": "stop"})
    with pytest.raises(PipelineError) as stopped:
        stopping.run(until_current=True)
    assert stopped.value.message == "SQL of a rule fails for some row"
    assert stopped.value.detail == "DIVIDE_BY_ZERO while writing public.bad."
    assert printed() == []


@pytest.mark.slow
def test_a_parked_table_keeps_all_of_its_ddl(
    spark: SparkSession, captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what comes before the first thing that is done to it, as for a partition."""
    captured.run("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);\n")

    def settings(sql: str) -> dict[str, Any]:
        rule = {"table": "public.parts", "filter": {"sql": sql}}
        return {"sink": {"type": "stdout"}, "rules": [rule], "on_error": "park"}

    captured.capture()
    pipeline(spark, captured, **settings("true")).run(until_current=True)
    captured.run("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);\n")
    captured.run("INSERT INTO parts VALUES (0);\n")
    captured.capture()
    state = pipeline(spark, captured, **settings("1 / id > 0")).run(until_current=True)
    assert set(state.parked) == {"public.parts"}
    capsys.readouterr()
    StateFile(Storage(captured.config.log.path), "out").ask_resume(None)
    pipeline(spark, captured, **settings("id >= 0")).run(until_current=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["op"] for line in lines] == ["ddl", "insert"]
