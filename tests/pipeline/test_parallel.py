"""Tables are written side by side, and what one sets on its session is its own."""

from __future__ import annotations

import threading

import pytest
from deltalake import Transaction
from pyspark.sql import SparkSession

from pgtide.errors import PipelineError, TargetError
from pgtide.pipeline.parallel import Writers
from pgtide.pipeline.steps import TableWork
from pgtide.sinks.delta.target import Target
from tests.fixtures.spark import TIME_ZONE

TABLES = 3
TOGETHER_S = 30.0
ZONE = "spark.sql.session.timeZone"
ID = "spark.databricks.delta.write.txnAppId"


@pytest.fixture
def work() -> list[TableWork]:
    return [TableWork(frozenset({("public", f"t{n}")}), ()) for n in range(TABLES)]


def test_side_by_side(spark: SparkSession, work: list[TableWork]) -> None:
    """All of them are inside of a write at once; each finds its own id, none is left behind."""
    together = threading.Barrier(TABLES)
    found: dict[str, str | None] = {}

    def apply(session: SparkSession, item: TableWork) -> None:
        with Target(session, "nowhere", {}).idempotent(Transaction(item.name, 1)):
            together.wait(TOGETHER_S)
            found[item.name] = session.conf.get(ID)
            together.wait(TOGETHER_S)
        assert session.conf.get(ID, None) is None
        assert session.conf.get(ZONE) == TIME_ZONE, "what the user has set"

    writers = Writers(spark, TABLES)
    try:
        assert writers.run(work, apply) == []
    finally:
        writers.close()
    assert found == {item.name: item.name for item in work}
    assert spark.conf.get(ID, None) is None


def test_what_fails_keeps_nobody(spark: SparkSession, work: list[TableWork]) -> None:
    written = []

    def apply(_: SparkSession, item: TableWork) -> None:
        if item is work[0]:
            raise TargetError("not this one")
        if item is work[1]:
            raise ValueError("a defect")
        written.append(item)

    writers = Writers(spark, 1)
    try:
        known, defect = writers.run(work, apply)
    finally:
        writers.close()
    assert (known.work, known.error.message) == (work[0], "not this one")
    assert isinstance(defect.error, PipelineError)
    assert isinstance(defect.error.__cause__, ValueError)
    assert written == [work[2]]
