"""``scd2``: every version that a row had, and from when to when.

New versions and the end of those before them are one MERGE: there is nothing between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.pipeline.steps import Reshaped, Rows, Step, Swept, Truncated
from pgtide.position import Position
from pgtide.sinks.delta.columns import LSN, RELATION, SEQ, earlier
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.mirror import newer
from pgtide.sinks.delta.reached import Portion, has, writes
from pgtide.sinks.delta.snapshot_rows import snapshot_marks
from pgtide.sinks.delta.sweeping import Sweeping, names_now
from pgtide.sinks.delta.target import Target
from pgtide.sinks.delta.unsent import may_lack_values
from pgtide.sinks.delta.versions import (
    CLOSES,
    END_LSN,
    END_SEQ,
    IS_CURRENT,
    SEEN_LSN,
    SEEN_SEQ,
    VALID_TO,
    VersionsPlan,
)
from pgtide.spark.cells import CellReader
from pgtide.spark.failures import unsent_at
from pgtide.spark.positions import at_or_after, before
from pgtide.spark.sql_text import quoted
from pgtide.spark.sweeps import Sweep


class VersionsTable(LakeTable):
    """A table that has every version of the rows of one of the source."""

    mode = "scd2"

    def _plan(self, step: Rows | Reshaped | Swept) -> VersionsPlan:
        shapes = self._batch.shapes.values()
        root = step.layout.shape.oid
        reader = CellReader.of(step.layout, self._batch.settings)
        return VersionsPlan(
            layout=reader.as_read,
            rules=self._batch.rules(step.table),
            reader=reader,
            relations={shape.id: shape.oid for shape in shapes if shape.root_oid == root},
        )

    def _rows(self, step: Rows, later: Sequence[Step]) -> None:
        plan = self._plan(step)
        plan.keys()  # refuses what cannot be
        target = self._ready(step, plan.columns())
        if target is None:
            self._batch.skip_write(step.table)
            return
        for portion, events in writes(self._batch, target, step, later):
            self._quarantine.keep(step.table, events, plan.reader)
            self._write(target, plan, portion, events)

    def _write(
        self, target: Target, plan: VersionsPlan, portion: Portion, events: DataFrame
    ) -> None:
        """Write versions; without those that cannot be whole while the table is being read."""
        step = portion.step
        unsent = may_lack_values(step.traits, step.layout.shape.replica_identity)
        if not unsent or plan.reader.policy != "null":
            try:
                self._change(target, plan, portion, events)
                return
            except Exception as error:
                at = unsent_at(error)
                if at is None or not self._batch.completes(step.layout, at):
                    raise
        elif not self._batch.completes(step.layout, step.high):
            self._change(target, plan, portion, events)
            return
        lenient = replace(plan, lenient=True)
        passed = lenient.passed_over(events, step.traits, target.frame())
        self._change(target, lenient, portion, events)
        self._batch.pass_over(step.table, passed)

    def _change(
        self, target: Target, plan: VersionsPlan, portion: Portion, events: DataFrame
    ) -> None:
        traits = portion.step.traits
        marks = snapshot_marks(self._batch, target, portion.step)
        if marks:
            traits = replace(traits, reads=False)  # there is no version that they could confirm
        changes = plan.changes(events, traits, target.frame())
        if marks is None:
            self._merge(target, changes, plan.keys(), portion)
        else:
            portion.append(target, changes.filter(f"NOT {CLOSES}").drop(CLOSES), marks)

    def _merge(self, target: Target, changes: DataFrame, keys: list[str], portion: Portion) -> None:
        same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
        changed = {name: f"s.{name}" for name in (VALID_TO, IS_CURRENT, END_LSN, END_SEQ)}
        changed |= {name: f"coalesce(s.{name}, t.{name})" for name in (SEEN_LSN, SEEN_SEQ)}
        names = [name for name in changes.columns if name != CLOSES]
        with target.idempotent(portion.id):
            (
                target.table()
                .alias("t")
                .merge(changes.alias("s"), f"{same} AND t.{IS_CURRENT} AND s.{CLOSES}")
                .whenMatchedUpdate(newer("t", "s"), set=dict(changed))
                .whenNotMatchedInsert(
                    f"NOT s.{CLOSES}",
                    values={quoted(name): f"s.{quoted(name)}" for name in names},
                )
                .execute()
            )

    def _swept(self, step: Swept) -> None:
        """End versions that were current then and not seen; it does not matter what ended them.

        Events behind the sweep may have been written before it.
        """
        plan = self._plan(step)
        target = self._lake.target(self._name(step.table), step.layout.shape.oid)
        names = dict(zip(step.layout.key_names, plan.keys(), strict=True))
        names = names_now(target, step.layout, names)
        marked = SEEN_LSN in target.schema.names
        seen = _seen_before if marked else (lambda at: earlier(at))
        Sweeping(
            target,
            step,
            plan.layout,
            names,
            lambda sweep: seen(sweep.older_than) & (F.col(IS_CURRENT) | _ended_behind(sweep.at)),
        ).update(_ended)

    def _truncated(self, step: Truncated) -> None:
        """End all current versions."""
        target = self._holding(step)
        if target is None:
            return
        if has(target, step.at):
            self._batch.skip_write(step.table)
            return
        rows = F.col(IS_CURRENT) & earlier(step.at)
        if step.partition:
            rows &= F.col(RELATION) == step.partition
        ended: dict[str, str | Column] = {
            VALID_TO: F.lit(self._committed_at(step)),
            IS_CURRENT: F.lit(False),
            END_LSN: F.lit(int(step.at.lsn)),
            END_SEQ: F.lit(step.at.seq),
        }
        target.table().update(rows, ended)

    def _committed_at(self, step: Truncated) -> datetime | None:
        at = (F.col("lsn") == int(step.at.lsn)) & (F.col("seq") == step.at.seq)
        found = self._batch.frame.filter(at).select("committed_at").head()
        return found["committed_at"] if found else None

    def _reshaped(self, step: Reshaped, later: Sequence[Step]) -> None:
        """What a column that was added has in older rows is in the current versions."""
        plan = self._plan(step)
        target = self._ready(step, plan.columns())
        if target is not None:
            self._filling.fill(target, plan, step, F.col(IS_CURRENT) & earlier(step.at), later)


def _seen_before(at: Position) -> Column:
    """Whether a version was last seen before a position."""
    return before(at, (F.coalesce(SEEN_LSN, LSN), F.coalesce(SEEN_SEQ, SEQ)))


def _ended_behind(at: Position) -> Column:
    return at_or_after(at.next, (F.col(END_LSN), F.col(END_SEQ)))


def _ended(sweep: Sweep) -> dict[str, Column]:
    """What a version that a sweep ends has in its columns."""
    moment = sweep.committed_at or datetime.now(UTC)
    return {
        VALID_TO: F.lit(moment),
        IS_CURRENT: F.lit(False),
        END_LSN: F.lit(int(sweep.at.lsn)),
        END_SEQ: F.lit(sweep.at.seq),
    }
