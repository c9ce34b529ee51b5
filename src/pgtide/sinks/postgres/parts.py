"""Parts of a batch: some of its rows, with what they do."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from pgtide.log.reader import Log
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.file_census import Between, census_of_files
from pgtide.spark.few_tasks import in_few_tasks


def part_of(batch: Batch, frame: DataFrame, rows: Between, log: Log) -> Batch | None:
    """The rows of a batch between two positions, which the frame has; None if there are none."""
    census = _census(batch, frame, rows, log)
    if census.high is None:
        return None
    return replace(batch, frame=in_few_tasks(frame, census.rows), census=census)


def _census(batch: Batch, frame: DataFrame, rows: Between, log: Log) -> Census:
    if batch.only is None:  # else there are rows of some tables only
        # Any version will do: rows between two positions never change.
        census = census_of_files(log.changes, log.snapshot().files, rows)
        if census is not None:
            return census
    return take_census(frame)
