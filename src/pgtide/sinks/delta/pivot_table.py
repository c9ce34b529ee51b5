"""``pivot``: one row per changed field, appended."""

from __future__ import annotations

from pyspark.sql import DataFrame

from pgtide.config.sinks import PivotSettings
from pgtide.pipeline.steps import Reshaped, Rows
from pgtide.rules import TableRules
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.event_table import EventTable
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout
from pgtide.spark.pivot import (
    changed_rows,
    pivot_rows,
    pivot_schema,
    require_old_rows,
    typed_columns,
)


class PivotTable(EventTable):
    """A table that tells which fields of which rows changed, when, from what to what."""

    mode = "pivot"

    def _columns(self, step: Rows | Reshaped) -> list[TargetColumn]:
        schema = pivot_schema(*self._parts(step))
        return [
            TargetColumn(field.name, field.dataType, field.metadata.get("attnum"))
            for field in schema.fields
        ]

    def _frame(self, step: Rows, events: DataFrame) -> DataFrame:
        changed = self._batch.census.changed
        require_old_rows(shape for shape in step.shapes if shape.id in changed)
        return pivot_rows(events, *self._parts(step))

    def _typed(self, step: Rows, events: DataFrame) -> tuple[DataFrame, list[str]]:
        return changed_rows(events), typed_columns(*self._parts(step))

    def _parts(self, step: Rows | Reshaped) -> tuple[Layout, TableRules, CellReader, PivotSettings]:
        rules = self._batch.rules(step.table)
        return step.layout, rules, self._reader(step), self._settings.pivot
