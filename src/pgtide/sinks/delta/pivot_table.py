"""``pivot``: one row per changed field, appended."""

from __future__ import annotations

from pyspark.sql import DataFrame

from pgtide.pipeline.steps import Reshaped, Rows
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.event_table import EventTable
from pgtide.spark.pivot import pivot_rows, pivot_schema, require_old_rows


class PivotTable(EventTable):
    """A table that tells which fields of which rows changed, when, from what to what."""

    mode = "pivot"

    def _columns(self, step: Rows | Reshaped) -> list[TargetColumn]:
        schema = pivot_schema(
            step.layout,
            self._batch.rules(step.table),
            self._reader(step),
            self._settings.pivot,
        )
        return [
            TargetColumn(field.name, field.dataType, field.metadata.get("attnum"))
            for field in schema.fields
        ]

    def _frame(self, step: Rows, events: DataFrame) -> DataFrame:
        ids = {
            count.shape for count in self._batch.census.counts if count.op in ("update", "delete")
        }
        require_old_rows(shape for shape in step.shapes if shape.id in ids)
        rules = self._batch.rules(step.table)
        return pivot_rows(events, step.layout, rules, self._reader(step), self._settings.pivot)
