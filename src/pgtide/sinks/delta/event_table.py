"""Tables that events are appended to, each event once: ``history`` and ``pivot``.

To them a TRUNCATE is an event like any other, and a sweep is none. So what the steps of a
batch keep apart for their sake is written together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Reshaped, Rows, Step, Swept, TableWork, Truncated
from pgtide.shape import Shape
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.reached import writes
from pgtide.spark.cells import CellReader
from pgtide.spark.compaction import Traits


class EventTable(LakeTable):
    """A table with one row or more per event."""

    merges = False

    def __init__(
        self, spark: SparkSession, batch: Batch, work: TableWork, settings: DeltaSettings
    ) -> None:
        super().__init__(spark, batch, work, settings)
        self._work = replace(work, steps=tuple(self._joined(work.steps)))

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

    def _joined(self, steps: Iterable[Step]) -> list[Step]:
        joined: list[Step] = []
        for step in steps:
            if isinstance(step, Swept):
                continue  # no change of the source, only of what a target should have had
            now = self._as_rows(step) if isinstance(step, Truncated) else step
            last = joined[-1] if joined else None
            if isinstance(now, Rows) and isinstance(last, Rows) and _alike(last, now):
                joined[-1] = _both(last, now)
            else:
                joined.append(now)
        return joined

    def _as_rows(self, step: Truncated) -> Rows:
        shapes = (self._truncated_shape(step),)
        traits = Traits(old_rows=False, updates=False, deletes=False, reads=False)
        return Rows(step.table, step.layout, shapes, step.at, step.at, 1, traits)

    def _truncated_shape(self, step: Truncated) -> Shape:
        """The shape that the TRUNCATE names, of a partition its own."""
        marks = self._batch.census.marks
        (shape,) = {
            mark.shape
            for mark in marks
            if mark.op == "truncate" and mark.at == step.at and mark.shape is not None
        }
        return self._batch.shapes[shape]


def _alike(one: Rows, other: Rows) -> bool:
    """Whether both have the same columns and key; a TRUNCATE does not know what old rows hold."""
    layouts = (one.layout, other.layout)
    return len({(layout.shape.id, layout.key_names) for layout in layouts}) == 1


def _both(one: Rows, other: Rows) -> Rows:
    shapes: dict[int, Shape] = {shape.id: shape for shape in (*one.shapes, *other.shapes)}
    return replace(
        one,
        layout=(one if one.traits.removes else other).layout,
        shapes=tuple(shapes.values()),
        high=other.high,
        count=one.count + other.count,
        traits=one.traits.joined(other.traits),
    )
