"""Rows in as many tasks as they are worth.

A log that is followed closely has a small file for every flush, and Spark reads a few dozen of them
in a task: a batch of a backlog came in 180 tasks, in each of the stages that every table has.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

FEW_ROWS = 10_000
"""What one task reads: exchanging rows between tasks takes longer than working on them."""

TASKS_PER_CORE = 2


def in_few_tasks(frame: DataFrame, rows: int | None = None) -> DataFrame:
    """The same rows; ``rows``: how many there are, about, if that is known."""
    if rows is not None and rows < FEW_ROWS:
        return frame.coalesce(1)
    return frame.coalesce(TASKS_PER_CORE * frame.sparkSession.sparkContext.defaultParallelism)
