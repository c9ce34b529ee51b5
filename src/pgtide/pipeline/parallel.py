"""Tables of a batch side by side: one thread and one Spark session for each that is written.

Settings that make a Delta write idempotent belong to the session, so no two threads share one.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pgtide.errors import PgtideError
from pgtide.pipeline.steps import TableWork
from pgtide.position import Position
from pgtide.spark.failures import as_pgtide_error
from pgtide.spark.session import prepare

# More than cores: a good part of a table's time is planning, which uses one core at most.
THREADS = max(4, min(8, os.cpu_count() or 4))
# A new session begins with the context's settings; these may have been set on the session.
_KEPT = ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.sql.ansi.enabled")


@dataclass(frozen=True)
class Failure:
    """A table that could not be written."""

    work: TableWork
    error: PgtideError
    position: Position | None = None  # from where on it lacks rows, unless that is the batch


class Writers:
    """Threads with their sessions, for the life of a pipeline."""

    def __init__(self, spark: SparkSession, threads: int = THREADS) -> None:
        self._sessions: queue.SimpleQueue[SparkSession] = queue.SimpleQueue()
        for _ in range(threads):
            self._sessions.put(_session(spark))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pgtide-writer")

    def run(
        self, work: Sequence[TableWork], apply: Callable[[SparkSession, TableWork], None]
    ) -> list[Failure]:
        """Apply all of it, even when some fails; what failed."""
        futures = [(item, self._pool.submit(self._one, item, apply)) for item in work]
        return [failure for item, future in futures for failure in _failure(item, future)]

    def _one(self, work: TableWork, apply: Callable[[SparkSession, TableWork], None]) -> None:
        session = self._sessions.get()
        try:
            apply(session, work)
        finally:
            self._sessions.put(session)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _failure(work: TableWork, future: Future[None]) -> list[Failure]:
    error = future.exception()
    if error is None:
        return []
    if not isinstance(error, Exception):
        raise error
    known = as_pgtide_error(error, f"writing {work.name}")
    if known is not error:
        known.__cause__ = error
    return [Failure(work, known)]


def _session(spark: SparkSession) -> SparkSession:
    session = prepare(spark.newSession())
    for name in _KEPT:
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    return session
