"""Errors of Spark say what went wrong without the values that they are about."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtide.errors import PgtideError, PipelineError, TargetUnavailable
from pgtide.spark.arrow_tasks import map_in_arrow
from pgtide.spark.failures import as_pgtide_error


def test_what_java_raises(spark: SparkSession) -> None:
    """The class, and that of the first cause: either alone may say nothing."""
    java: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JError, match="secret") as plain:
        java.java.util.Locale.Builder().setLanguage("secret!")
    error = as_pgtide_error(plain.value, "reading")
    assert error.detail == "java.util.IllformedLocaleException while reading."
    cause = java.java.lang.IllegalStateException("secret")
    with pytest.raises(Py4JError, match="secret") as caused:
        java.java.util.concurrent.CompletableFuture.failedFuture(cause).join()
    error = as_pgtide_error(caused.value, "reading")
    assert error.detail == (
        "java.util.concurrent.CompletionException by java.lang.IllegalStateException while reading."
    )


def test_a_python_worker_that_is_killed(spark: SparkSession) -> None:
    """As by the kernel, when memory is short: the next one may get through."""

    def kill(given: Iterable[Any]) -> Iterator[Any]:
        rows = [*given]
        os.kill(os.getpid(), signal.SIGKILL)
        yield from rows

    with pytest.raises(Py4JError) as by_rows:
        spark.sparkContext.parallelize([1], 1).mapPartitions(kill).collect()
    with pytest.raises(Py4JError) as by_batches:
        map_in_arrow(spark.range(1), kill, "id long").collect()
    for failed in (by_rows, by_batches):
        assert isinstance(as_pgtide_error(failed.value, "staging"), TargetUnavailable)


def test_a_plan_that_cannot_be_made(spark: SparkSession) -> None:
    """Spark shows the plan with what is wrong; what stands in there has not happened."""
    refusal = "raise_error('a row of the log does not fit its shape') AS row"
    with pytest.raises(PySparkException) as failed:
        spark.range(1).selectExpr(refusal, "id").filter("nothing > 1")
    assert type(as_pgtide_error(failed.value, "reading")) is PipelineError


def test_storage_that_fails_below_delta_rs(tmp_path: Path) -> None:
    """Tried again, unless a file is not there: it will not come back."""
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    table = DeltaTable(tmp_path)
    (file,) = tmp_path.glob("*.parquet")
    file.unlink()
    assert isinstance(merge_error(table), PipelineError)
    file.mkdir()
    error = merge_error(table)
    assert isinstance(error, TargetUnavailable)
    assert error.detail == "DeltaError while merging."


def merge_error(table: DeltaTable) -> PgtideError:
    merge = table.merge(pa.table({"a": [1]}), "t.a = s.a", source_alias="s", target_alias="t")
    with pytest.raises(DeltaError) as failed:
        merge.when_matched_delete().execute()
    return as_pgtide_error(failed.value, "merging")


def test_a_rule_fails_while_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Spark says that a task failed; why is below."""
    rows = spark.sql("SELECT CAST(text AS int) AS n FROM VALUES ('1'), ('secret') AS t(text)")
    with pytest.raises(PySparkException) as failed:
        rows.write.parquet(str(tmp_path / "rows"))
    error = as_pgtide_error(failed.value, "writing public.t")
    assert error.message == "SQL of a rule fails for some row"
    assert error.detail == "CAST_INVALID_INPUT while writing public.t."
    assert "try_cast" in error.hint
