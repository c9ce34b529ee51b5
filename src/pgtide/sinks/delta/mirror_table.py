"""Applying the steps of a batch to one mirror."""

from __future__ import annotations

from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as F

from pgtide.errors import PipelineError
from pgtide.pipeline.steps import Reshaped, Rows, Truncated
from pgtide.sinks.delta.columns import DELETED, LSN, RELATION, SEQ, quoted
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.merging import Merge, append, merge
from pgtide.sinks.delta.mirror import MirrorPlan
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout, TableName


class MirrorTable(LakeTable):
    """A table that is equal to one of the source."""

    mode = "mirror"
    keeps_past = False

    def _plan(self, table: TableName, layout: Layout) -> MirrorPlan:
        shapes = self._batch.shapes.values()
        members = {shape.id: shape.oid for shape in shapes if shape.root_oid == layout.shape.oid}
        return MirrorPlan(
            layout=layout,
            rules=self._batch.rules(table),
            reader=CellReader(layout, self._batch.settings.on_unrepresentable),
            committed_at=self._settings.committed_at,
            soft_delete=self._settings.soft_delete,
            relations=members,
        )

    def _rows(self, step: Rows, number: int) -> None:
        plan = self._plan(step.table, step.layout)
        target = self._ready(step, plan.columns())
        app_id, version = self._batch.mark.app_id(number), self._batch.mark.number
        if target is None or target.written(app_id, version):
            return
        table = target.open()
        assert table is not None, "it was made ready"
        if not plan.layout.keys:
            raise PipelineError(
                "a table without a key cannot be mirrored",
                detail=f"{'.'.join(step.table)} has no primary key and no identity index.",
                hint="Add a key, use mode: history, or leave the table out with tables.",
            )
        rows = plan.rows(self._batch.rows(step), step.traits)
        columns = [column.name for column in plan.columns()]
        job = Merge(rows, list(plan.keys()), columns, self._settings.soft_delete)
        if not table.file_uris():
            append(target, job, app_id, version)
        else:
            merge(target, table, job, step.count, app_id, version)

    def _truncated(self, step: Truncated, number: int) -> None:
        shape = self._truncated_shape(step)
        target = self._lake.target(self._name(step.table), shape.root_oid or shape.oid)
        app_id, version = self._batch.mark.app_id(number), self._batch.mark.number
        if not target.exists() or target.written(app_id, version):
            return
        before = (F.col(LSN) < int(step.at.lsn)) | (
            (F.col(LSN) == int(step.at.lsn)) & (F.col(SEQ) < step.at.seq)
        )
        rows = before & (F.col(RELATION) == step.partition) if step.partition else before
        with target.idempotent(app_id, version):
            table = SparkDeltaTable.forPath(target.spark, target.path)
            if self._settings.soft_delete:
                changed = {LSN: F.lit(int(step.at.lsn)), SEQ: F.lit(step.at.seq)}
                table.update(rows, {DELETED: F.lit(True), **changed})
            else:
                table.delete(rows)

    def _reshaped(self, step: Reshaped, number: int) -> None:
        plan = self._plan(step.table, step.layout)
        target = self._ready(step, plan.columns())
        filled = {
            column.name: step.defaults[column.attnum]
            for column in plan.columns()
            if column.attnum in step.defaults
        }
        app_id, version = self._batch.mark.app_id(number), self._batch.mark.number
        if target is None or not filled or target.written(app_id, version):
            return
        layout = step.layout
        codecs = {c.attnum: codec for c, codec in zip(layout.columns, layout.codecs, strict=True)}
        values: dict[str, str | Column] = {
            quoted(column.name): codecs[column.attnum].decode(F.lit(filled[column.name]))
            for column in plan.columns()
            if column.name in filled
        }
        with target.idempotent(app_id, version):
            SparkDeltaTable.forPath(target.spark, target.path).update(set=values)
