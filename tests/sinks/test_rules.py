"""Rules that cannot do what they seem to say stop a pipeline, whatever its sink."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import ConfigError
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured

SECRET = "swordfish"

SINKS: list[dict[str, Any]] = [
    {"type": "delta", "mode": "mirror"},
    {"type": "delta", "mode": "history"},
    {"type": "delta", "mode": "pivot"},
    {"type": "file", "format": "jsonl"},
    {"type": "file", "format": "parquet"},
]


def refused(spark: SparkSession, captured: Captured, sink: dict[str, Any], rule: Any) -> str:
    """What a pipeline says that stops; nothing of the rows is in its target."""
    captured.capture()
    target = captured.directory / "target"
    pipeline = {"sink": {**sink, "path": str(target)}, "rules": [rule]}
    config = Config.model_validate({**captured.settings, "pipelines": {"p": pipeline}})
    with pytest.raises(ConfigError) as caught:
        PipelineRun(spark, config, "p").run(until_current=True)
    files = [file for file in target.rglob("*") if file.is_file()]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    return caught.value.message


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.get("mode") or sink["format"])
@pytest.mark.parametrize("way", [{"mask": {}}, {"hash": {"salt": "s"}}], ids=["mask", "hash"])
def test_a_key_that_would_change(
    spark: SparkSession, captured: Captured, sink: dict[str, Any], way: dict[str, Any]
) -> None:
    captured.run(
        f"""CREATE TABLE t (id text PRIMARY KEY, note text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES ('{SECRET}', 'a');
"""
    )
    rules = {"table": "public.t", "transform": {"column": "id", **way}}
    said = refused(spark, captured, sink, rules)
    assert said == f"rule 1 for public.t: {next(iter(way))} on id, which is part of the key"


@pytest.mark.parametrize("sink", [SINKS[0], SINKS[3]], ids=["mirror", "jsonl"])
def test_a_rule_for_a_partition(
    spark: SparkSession, captured: Captured, sink: dict[str, Any]
) -> None:
    captured.run(
        f"""CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10);
INSERT INTO t VALUES (1, '{SECRET}');
"""
    )
    masked = {"table": "public.t_low", "transform": {"column": "note", "mask": {}}}
    said = refused(spark, captured, sink, masked)
    assert said == "rule 1: public.t_low matches public.t_low, a partition of public.t"
