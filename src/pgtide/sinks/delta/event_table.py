"""Tables that events are appended to, each event once: ``history`` and ``pivot``.

What the steps of a batch keep apart for the sake of other tables is written together, see
``event_steps``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Reshaped, Rows, Step, Swept, TableWork, Truncated
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.reached import writes
from pgtide.sinks.event_steps import event_steps
from pgtide.spark.cells import CellReader


class EventTable(LakeTable):
    """A table with one row or more per event."""

    merges = False

    def __init__(
        self, spark: SparkSession, batch: Batch, work: TableWork, settings: DeltaSettings
    ) -> None:
        super().__init__(spark, batch, work, settings)
        self._work = replace(work, steps=tuple(event_steps(batch, work.steps)))

    @abstractmethod
    def _columns(self, step: Rows | Reshaped) -> list[TargetColumn]:
        """The columns of the table."""

    @abstractmethod
    def _frame(self, step: Rows, events: DataFrame) -> DataFrame:
        """The rows for these events, with the table's columns."""

    @abstractmethod
    def _typed(self, step: Rows, events: DataFrame) -> tuple[DataFrame, list[str]]:
        """What is written with its type: rows of the log, and columns of the source."""

    def _rows(self, step: Rows, later: Sequence[Step]) -> None:
        target = self._ready(step, self._columns(step))
        if target is None:
            self._batch.skip_write(step.table)
            return
        for portion, events in writes(self._batch, target, step, later):
            rows, columns = self._typed(step, events)
            self._quarantine.keep(step.table, rows, self._reader(step), columns)
            portion.append(target, self._frame(portion.step, events))

    def _reader(self, step: Rows | Reshaped) -> CellReader:
        return CellReader.of(step.layout, self._batch.settings)

    def _truncated(self, step: Truncated) -> None:
        raise AssertionError("a TRUNCATE is among the rows")

    def _swept(self, step: Swept) -> None:
        raise AssertionError("a sweep is no event")

    def _reshaped(self, step: Reshaped, later: Sequence[Step]) -> None:
        self._ready(step, self._columns(step))
