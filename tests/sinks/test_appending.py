"""Rows that Spark writes as files and pgtide commits: all of them once, or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import Transaction
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType

from pgtide.config.sinks import DeltaSettings
from pgtide.errors import ConfigError, TargetUnavailable
from pgtide.sinks.delta import DeltaSink, appending
from pgtide.sinks.delta.appending import append
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.target import Target


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> Target:
    made = Target(spark, str(tmp_path / "a table"), {})
    made.create([TargetColumn("id", IntegerType()), TargetColumn("a b", StringType())], {})
    return made


def _append(target: Target, row: int, version: int) -> None:
    frame = target.spark.createDataFrame([(row, "v")], "id int, `a b` string")
    append(target, frame, Transaction("writer", version))


def _ids(target: Target) -> list[int]:
    return sorted(row["id"] for row in target.frame().collect())


def test_an_id_is_written_once(target: Target) -> None:
    _append(target, 1, 1)
    _append(target, 1, 1)
    _append(target, 2, 2)
    _append(target, 2, 1)
    assert _ids(target) == [1, 2]
    assert target.frame().filter("id > 1").columns == ["id", "a b"]


def test_no_rows_have_an_id_too(target: Target) -> None:
    nothing = target.spark.createDataFrame([], "id int, `a b` string")
    append(target, nothing, Transaction("writer", 1))
    _append(target, 1, 1)
    assert _ids(target) == [], "it was written"
    append(target, nothing, None)
    assert len(list(Path(target.path).glob("_delta_log/*.json"))) == 2


def test_what_is_left_by_a_crash(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the commit: the files are there and not the table's, and VACUUM takes them."""

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(appending, "_commit", killed)
        with pytest.raises(SystemExit):
            _append(target, 1, 1)
    left = list(Path(target.path).glob("rows-*/**/*.parquet"))
    assert left
    assert _ids(target) == []
    _append(target, 1, 1)
    assert _ids(target) == [1]
    table = target.open()
    assert table is not None
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not [file for file in left if file.exists()]
    assert _ids(target) == [1]


def test_a_write_that_fails_leaves_nothing(target: Target) -> None:
    frame = target.spark.sql("SELECT CAST(raise_error('no') AS int) AS id, 'v' AS `a b`")
    with pytest.raises(Exception, match="no"):
        append(target, frame, Transaction("writer", 1))
    assert not list(Path(target.path).glob("rows-*"))
    _append(target, 1, 1)
    assert _ids(target) == [1]
    assert not list(Path(target.path).glob("rows-*/_delta_log"))


def test_a_commit_that_fails_is_transient(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    table = target.open()
    assert table is not None
    monkeypatch.setattr(Target, "open", lambda _: table)
    _append(target, 1, 5)
    table.load_as_version(0)
    with pytest.raises(TargetUnavailable):
        _append(target, 2, 4)


def test_an_error_after_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint cannot be written; the rows were, and their files must stay."""
    target = Target(spark, str(tmp_path / "t"), {})
    columns = [TargetColumn("id", IntegerType()), TargetColumn("a b", StringType())]
    target.create(columns, {"delta.checkpointInterval": "1"})
    obstacle = tmp_path / "t" / "_delta_log" / "_last_checkpoint"
    obstacle.mkdir()
    _append(target, 1, 1)
    obstacle.rmdir()
    assert _ids(target) == [1]


def test_another_writer_was_first(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    _append(target, 1, 1)
    monkeypatch.setattr(Target, "exists", lambda _: False)
    assert not target.create([TargetColumn("other", StringType())], {})
    assert _ids(target) == [1]


def test_features_that_only_spark_knows(target: Target) -> None:
    target.set_properties({"delta.enableRowTracking": "true"})
    _append(target, 1, 1)
    _append(target, 1, 1)
    assert _ids(target) == [1]


def test_a_path_that_would_lead_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """Said before anything is written: some readers would take it for another path."""
    settings = DeltaSettings(type="delta", path=str(tmp_path / "a%20b"))
    with pytest.raises(ConfigError, match="cannot have") as refused:
        DeltaSink(settings, spark)
    assert "'%20'" in refused.value.detail
