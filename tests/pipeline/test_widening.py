"""More tables for a pipeline that has run: they come whole, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import LogGap
from pgtide.log import snapshot as snapshots
from pgtide.log.readers import list_readers
from pgtide.log.storage import Storage
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn
from tests.fixtures.capture import Captured

SCRIPT = """CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY);
INSERT INTO a VALUES (1);
INSERT INTO b VALUES (1), (2);
"""


def run(spark: SparkSession, captured: Captured, *tables: str, **pipeline: Any) -> State:
    captured.capture()
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    settings = {"sink": sink, "tables": list(tables), **pipeline}
    config = Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})
    return PipelineRun(spark, config, "lake").run(until_current=True)


def lake(spark: SparkSession, captured: Captured, table: str) -> list[int]:
    frame = spark.read.format("delta").load(str(captured.directory / "lake" / "public" / table))
    return sorted(row["id"] for row in frame.select("id").collect())


def test_a_table_is_selected_later(spark: SparkSession, captured: Captured) -> None:
    """What was passed over of it is caught up with, also after it was left out for a time."""
    captured.run(SCRIPT)
    run(spark, captured, "public.a")
    captured.run("INSERT INTO a VALUES (2);\nINSERT INTO b VALUES (3);")
    state = run(spark, captured, "public.*")
    assert not state.parked
    assert lake(spark, captured, "a") == [1, 2]
    assert lake(spark, captured, "b") == [1, 2, 3]
    captured.run("INSERT INTO b VALUES (4);\nDELETE FROM b WHERE id = 1;")
    run(spark, captured, "public.a")
    assert lake(spark, captured, "b") == [1, 2, 3]
    captured.run("INSERT INTO b VALUES (5);")
    run(spark, captured, "public.a", "public.b")
    assert lake(spark, captured, "b") == [2, 3, 4, 5]
    names = [reader.name for reader in list_readers(Storage(captured.config.log.path))]
    assert names == ["pipeline.lake"]


def test_the_log_has_lost_the_beginning(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.run(SCRIPT)
    run(spark, captured, "public.a")
    whole = snapshots._read_snapshot

    def kept_in_part(table: Any) -> Any:
        found = whole(table)
        return replace(found, complete_from=Lsn(1))

    monkeypatch.setattr(snapshots, "_read_snapshot", kept_in_part)
    with pytest.raises(LogGap, match="selected later") as refused:
        run(spark, captured, "public.*")
    assert "public.b" in refused.value.detail
    state = StateFile(Storage(captured.config.log.path), "lake").load()
    assert state is not None
    assert (state.tables, state.parked) == (["public.a"], {})
    run(spark, captured, "public.a")
