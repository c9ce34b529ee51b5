"""Units of chunks through Spark, a few at a time.

Each unit is a job of one task, submitted by one of a few threads: that bounds how many
sessions read at a time whatever the size of the cluster, the fast do not wait for the slow,
and the driver hears of every unit as it is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from pyspark import InheritableThread, SparkContext

from pgtide.errors import PgtideError
from pgtide.snapshot.chunks import Chunk
from pgtide.snapshot.task import Copier, Outcome
from pgtide.spark.failures import as_pgtide_error

POLL_S = 0.2


def copy_units(
    context: SparkContext,
    copier: Copier,
    units: Sequence[list[Chunk]],
    *,
    parallelism: int,
    stop: threading.Event,
    on_outcome: Callable[[Sequence[Chunk], Outcome], None],
    on_wait: Callable[[], None],
) -> bool:
    """Copy all of them; False if it was stopped, raises the first failure."""
    work = _Work(context, copier, units)
    threads = [
        InheritableThread(target=work.run, name=f"pgtide-copy-{number}")
        for number in range(min(parallelism, len(units)))
    ]
    for thread in threads:
        thread.start()
    left = len(units)
    try:
        while left and not stop.is_set() and work.error is None:
            try:
                unit, outcome = work.done.get(timeout=POLL_S)
            except queue.Empty:
                on_wait()
                continue
            left -= 1
            on_outcome(unit, outcome)
    finally:
        work.over.set()
        if left:
            context.cancelJobGroup(work.group)
        for thread in threads:
            thread.join()
    if work.error is not None:
        raise work.error
    return not left


class _Work:
    """What the threads share."""

    def __init__(self, context: SparkContext, copier: Copier, units: Sequence[list[Chunk]]) -> None:
        self._context = context
        self._copier = copier
        self._waiting: queue.SimpleQueue[list[Chunk]] = queue.SimpleQueue()
        for unit in units:
            self._waiting.put(unit)
        self.group = f"pgtide-snapshot-{copier.lsn}"
        self.done: queue.SimpleQueue[tuple[list[Chunk], Outcome]] = queue.SimpleQueue()
        self.over = threading.Event()
        self.error: PgtideError | None = None

    def run(self) -> None:
        self._context.setJobGroup(self.group, "pgtide snapshot", interruptOnCancel=True)
        try:
            while not self.over.is_set():
                unit = self._waiting.get_nowait()
                job = self._context.parallelize([unit], 1).mapPartitions(self._copier)
                (outcome,) = job.collect()
                if outcome.error is not None:
                    raise outcome.error
                self.done.put((unit, outcome))
        except queue.Empty:
            return
        except BaseException as exc:
            if not self.over.is_set() and self.error is None:
                self.error = as_pgtide_error(exc, "copying tables")
