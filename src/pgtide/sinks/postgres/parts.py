"""Parts of a batch: some of its rows, with what they do."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from pgtide.log.reader import Log
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.file_census import Between, census_of_log
from pgtide.spark.few_tasks import in_few_tasks


def part_of(batch: Batch, frame: DataFrame, rows: Between, log: Log) -> Batch | None:
    """The rows of a batch between two positions, which the frame has; None if there are none."""
    # Of a batch that is of some tables only, files have other rows too.
    census = census_of_log(log, rows) if batch.only is None else None
    return counted(batch, frame, census or take_census(frame))


def counted(batch: Batch, frame: DataFrame, census: Census) -> Batch | None:
    """A batch of other rows, whose census is known; None if there are none."""
    if census.high is None:
        return None
    return replace(batch, frame=in_few_tasks(frame, census.rows), census=census)
