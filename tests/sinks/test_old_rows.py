"""What a partition's old rows hold is told, whatever the others do in the same batch."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, rows, table

# The root, which has no identity, and a partition that is only inserted to.
SCRIPT = """CREATE TABLE bag (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE low PARTITION OF bag FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF bag FOR VALUES FROM (10) TO (20);
ALTER TABLE low REPLICA IDENTITY FULL;
ALTER TABLE high REPLICA IDENTITY NOTHING;
INSERT INTO bag VALUES (1, 'x'), (11, 'y');
DELETE FROM low;
TRUNCATE bag;
INSERT INTO bag VALUES (2, 'z');
"""


def test_in_a_history(spark: SparkSession, captured: Captured) -> None:
    captured.run(SCRIPT)
    deliver(spark, captured, "history")
    history = table(spark, captured, "history", "bag")
    found = rows(history, "_pgtide_op", "_pgtide_unchanged", "_pgtide_before", "a", "b")
    assert [row for row in found if row[0] != "truncate"] == [
        ("insert", None, None, 1, "x"),
        ("insert", None, None, 11, "y"),
        ("delete", None, {"a": "1", "b": "x"}, 1, "x"),
        ("insert", None, None, 2, "z"),
    ]
    path = str(captured.directory / "history" / "public" / "bag")
    writes = [entry for entry in DeltaTable(path).history() if entry["operation"] == "WRITE"]
    assert len(writes) == 1, "a TRUNCATE is an event like any other"


def test_in_events(
    spark: SparkSession, captured: Captured, capsys: pytest.CaptureFixture[str]
) -> None:
    captured.run(SCRIPT)
    captured.capture()
    settings = {"sink": {"type": "stdout"}, "tables": ["public.bag"]}
    config = Config.model_validate({**captured.settings, "pipelines": {"out": settings}})
    PipelineRun(spark, config, "out").run(until_current=True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    deleted = [event["before"] for event in events if event["op"] == "delete"]
    assert deleted == [{"a": "1", "b": "x"}]
