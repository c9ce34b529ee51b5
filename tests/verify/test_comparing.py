"""Comparing a table, and leaving it to somebody who needs it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import Yielded
from pgtide.verify.comparing import Comparison, Pace
from pgtide.verify.postgres_side import Sums
from pgtide.verify.ranges import HashRanges
from pgtide.verify.target_side import TargetTable
from tests.fixtures.waiting import wait_until


@pytest.mark.timeout(100)
def test_it_gives_way_while_spark_reads(spark: SparkSession) -> None:
    """The source is done, and Spark would read for days: all of it ends within a moment."""
    jobs = spark.sparkContext.statusTracker()

    def somebody_waits() -> None:
        if jobs.getActiveJobsIds():
            raise Yielded("somebody needs the table")

    def read_for_ever() -> Sums:
        spark.range(10**17).selectExpr("sum(hash(id))").collect()
        return {}

    target = TargetTable(spark, cast(Any, object()), None, ())
    pace = Pace(check=somebody_waits)
    nobody = cast(Any, None)
    comparison = Comparison(nobody, nobody, target, sessions=(), pace=pace)
    with pytest.raises(Yielded):
        comparison._both([], HashRanges.over("row", 1), "", read_for_ever)
    wait_until(lambda: not jobs.getActiveJobsIds(), "Spark to stop reading")
