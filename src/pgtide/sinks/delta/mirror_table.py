"""Applying the steps of a batch to one mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.pipeline.steps import Reshaped, Rows, Step, Swept, Truncated
from pgtide.pipeline.voiding import what_counts
from pgtide.position import Position
from pgtide.sinks.delta.columns import DELETED, LSN, RELATION, SEQ, earlier
from pgtide.sinks.delta.keyless import write_keyless
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.merging import Merge, fill, merge
from pgtide.sinks.delta.mirror import OWN, MirrorPlan
from pgtide.sinks.delta.quarantine import NOT_SENT
from pgtide.sinks.delta.reached import Portion, emptying, has, writes
from pgtide.sinks.delta.snapshot_rows import snapshot_marks
from pgtide.sinks.delta.sweeping import Sweeping, names_now
from pgtide.sinks.delta.target import Target
from pgtide.sinks.delta.unsent import Completing, first_position, may_lack_values
from pgtide.sinks.delta.view import View
from pgtide.spark.cells import CellReader
from pgtide.spark.compaction import EVENT, known_key
from pgtide.spark.failures import never_whole
from pgtide.spark.layout import Layout, TableName
from pgtide.spark.sql_text import quoted
from pgtide.spark.sweeps import Sweep


class MirrorTable(LakeTable):
    """A table that is equal to one of the source."""

    mode = "mirror"
    keeps_past = False

    def _plan(self, table: TableName, layout: Layout) -> MirrorPlan:
        shapes = self._batch.shapes.values()
        members = {shape.id: shape.oid for shape in shapes if shape.root_oid == layout.shape.oid}
        reader = CellReader.of(layout, self._batch.settings)
        return MirrorPlan(
            layout=reader.as_read,
            rules=self._batch.rules(table),
            reader=reader,
            committed_at=self._settings.committed_at,
            soft_delete=self._settings.soft_delete,
            relations=members,
        )

    def _to_do(self) -> Sequence[Step]:
        return what_counts(self._work.steps, lambda step: not self._keeps_rows(step))

    def _rows(self, step: Rows, later: Sequence[Step]) -> None:
        plan = self._plan(step.table, step.layout)
        target = self._ready(step, plan.columns())
        if target is None:
            self._batch.skip_write(step.table)
            return
        self._show(step.table, target, plan)
        if not step.shapes:
            return
        for portion, events in writes(self._batch, target, step, later):
            if plan.layout.keys:
                self._keyed(target, plan, portion, events)
            else:
                self._quarantine.keep(step.table, events, plan.reader)
                write_keyless(target, plan, portion, events)

    def _keyed(self, target: Target, plan: MirrorPlan, portion: Portion, events: DataFrame) -> None:
        table, step = target.open(), portion.step
        assert table is not None, "it was made ready"
        state = plan.state(events, step.traits)
        if plan.reader.policy == "null":
            # Without its key a row has no place here; the quarantine has it.
            state = state.filter(known_key(plan.layout))
            rows = state.select(*EVENT).union(plan.unreadable_keys(events).select(*EVENT))
            self._quarantine.keep(step.table, rows, plan.reader)
        columns = [column.name for column in plan.columns()]
        rows = plan.rows(state, step.traits)
        job = Merge(rows, list(plan.keys()), columns, self._settings.soft_delete)
        with self._completed(target, job, step) as job:
            marks = snapshot_marks(self._batch, target, step)
            if marks is not None:
                fill(target, job, portion.id, marks)
            else:
                merge(target, table, job, step.count, portion.id)

    @contextmanager
    def _completed(self, target: Target, job: Merge, step: Rows) -> Iterator[Merge]:
        """The merge with what its rows lack taken from the mirror, or refused."""
        if not may_lack_values(step.traits, step.layout.shape.replica_identity):
            yield job
            return
        completing = Completing(target, job)
        try:
            if completing.needed():
                job = replace(job, rows=completing.rows())
                job = self._whole(job, completing.incomplete(job.rows), step)
            yield job
        finally:
            completing.close()

    def _whole(self, job: Merge, incomplete: DataFrame, step: Rows) -> Merge:
        """The merge without rows that were never seen whole, if a read will bring them."""
        at = first_position(incomplete)
        if at is None:
            return job
        if not self._batch.completes(step.layout, at):
            self._refuse(at, incomplete, step)
            return job
        self._batch.pass_over(step.table, incomplete.count())
        keys = incomplete.select(*[quoted(key) for key in job.keys])
        return replace(job, rows=job.rows.join(keys, list(job.keys), "left_anti"))

    def _refuse(self, at: Position, incomplete: DataFrame, step: Rows) -> None:
        """Rows that were never seen whole: to be said, or kept with what they lack noted."""
        if self._batch.settings.on_unrepresentable != "null":
            raise never_whole(".".join(step.table), str(at))
        values = incomplete.select(
            F.lit(None).cast("string").alias("column"),
            F.lit(None).cast("string").alias("key"),
            F.col(LSN).alias("lsn"),
            F.col(SEQ).alias("seq"),
            F.lit(None).cast("string").alias("text"),
        )
        self._quarantine.add(step.table, values, NOT_SENT)

    def _show(self, table: TableName, target: Target, plan: MirrorPlan) -> None:
        """A view with the columns of the source and nothing else."""
        if self._settings.views is not None:
            columns = [column for column in plan.columns() if column.name not in OWN]
            view = View(target, self._settings.views, "_".join(self._name(table)))
            view.show(columns, hide_deleted=self._settings.soft_delete)

    def _truncated(self, step: Truncated) -> None:
        target = self._holding(step)
        if target is None:
            return
        if has(target, step.at):
            self._batch.skip_write(step.table)
            return
        before = earlier(step.at)
        rows = before & (F.col(RELATION) == step.partition) if step.partition else before
        if self._keeps_rows(step):
            changed = {LSN: F.lit(int(step.at.lsn)), SEQ: F.lit(step.at.seq)}
            target.table().update(rows, {DELETED: F.lit(True), **changed})
        else:
            with emptying(target, step.at, inside=self._voids_patches(step)):
                target.table().delete(rows)

    def _keeps_rows(self, step: Truncated) -> bool:
        """Whether the rows stay, marked as deleted."""
        return self._settings.soft_delete and bool(step.layout.key_names)

    def _voids_patches(self, step: Truncated) -> bool:
        """Whether rows of its own transaction may lack values: they are not to come once more.

        What would come before the TRUNCATE finds no row to take them from. Others do no harm.
        """
        return any(
            isinstance(other, Rows)
            and other.layout.shape.oid == step.layout.shape.oid
            and other.traits.unsent
            and other.low < step.at
            and other.high.lsn == step.at.lsn
            for other in self._work.steps
        )

    def _swept(self, step: Swept) -> None:
        plan = self._plan(step.table, step.layout)
        target = self._lake.target(self._name(step.table), step.layout.shape.oid)
        soft = self._settings.soft_delete and bool(plan.layout.keys)
        if soft and DELETED not in target.schema.names:
            target.spark.sql(f"ALTER TABLE {target.sql} ADD COLUMNS ({DELETED} boolean)")
        names = dict(zip(step.layout.key_names, plan.keys(), strict=True))
        shown = F.col(DELETED).isNull() | ~F.col(DELETED) if soft else F.lit(True)
        sweeping = Sweeping(
            target,
            step,
            plan.layout,
            names_now(target, step.layout, names),
            lambda sweep: earlier(sweep.older_than) & shown,
        )
        if soft:
            sweeping.update(_marked)
        else:
            sweeping.delete()

    def _reshaped(self, step: Reshaped, later: Sequence[Step]) -> None:
        plan = self._plan(step.table, step.layout)
        target = self._ready(step, plan.columns())
        if target is not None:
            self._filling.fill(target, plan, step, earlier(step.at), later)


def _marked(sweep: Sweep) -> dict[str, Column]:
    """What a softly deleted row has in its columns."""
    at = {LSN: F.lit(int(sweep.at.lsn)), SEQ: F.lit(sweep.at.seq)}
    return {DELETED: F.lit(True), **at}
