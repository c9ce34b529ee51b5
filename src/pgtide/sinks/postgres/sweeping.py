"""Sweeps: rows of the target that a refresh has not found at the source any more.

Rows of the target carry no positions, so the log is asked: whatever was changed or read since the
sweep's ``older_than`` is there, everything else that the sweep is about is not. The keys are
staged like rows, and what has none of them is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from psycopg import sql
from pyspark.sql import DataFrame

from pgtide.errors import LogGap, TargetError
from pgtide.log.snapshot import Snapshot
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.steps import Swept
from pgtide.postgres.connection import SqlConnection
from pgtide.shape import Shape
from pgtide.sinks.postgres.keyed_state import STATE, TextLayout, copy_text
from pgtide.sinks.postgres.stages import Stage
from pgtide.sinks.postgres.statements import Chosen, Statements, quoted
from pgtide.sinks.postgres.target_tables import TargetTable, read_tables
from pgtide.spark.layout import TableName
from pgtide.spark.sql_text import element
from pgtide.spark.sweeps import Sweep


@dataclass(frozen=True)
class StagedSweep:
    """One sweep, and where the keys are that it spares."""

    step: Swept
    sweep: Sweep
    number: int
    pipeline: str
    table: TableName  # of the target
    names: Mapping[str, str]  # of columns: those of the source, and the target's
    shapes: tuple[Shape, ...]  # of the rows that are meant

    @property
    def stage(self) -> Stage | None:
        """None for a table without a key: nothing of it is spared."""
        layout = self.step.layout
        if not layout.key_names:
            return None
        keys = (layout.columns[index] for index in layout.keys)
        columns = tuple(replace(column, name=self.names[column.name]) for column in keys)
        return Stage(self.pipeline, -self.number, columns, tuple(range(len(columns))))

    def spared(self, frames: LogFrames, log: Snapshot) -> DataFrame:
        """The keys of rows that were changed or read since, as a state to be staged."""
        if log.complete_from > self.sweep.older_than.lsn:
            raise LogGap(
                "the log no longer holds what a refresh has read",
                detail=f"The sweep at {self.sweep.at} is about {self.sweep.older_than} and later; "
                f"retention has kept {log.complete_from} and later.",
                hint=f"Read the table again: pgtide refresh {'.'.join(self.step.table)} --replace",
            )
        layout = TextLayout.like(self.step.layout)
        ids = [shape.id for shape in self.shapes]
        rows = frames.between(log.version, self.sweep.older_than, self.sweep.at)
        rows = rows.filter("after IS NOT NULL").filter(rows["shape"].isin(0, *ids))
        key = ", ".join(element("after", index) for index in layout.keys)
        keys = layout.align(rows, self.shapes).selectExpr(f"array({key}) AS values").distinct()
        given = {
            "segment": "0",
            "stage": str(-self.number),
            "op": "'read'",
            "text": copy_text("values"),
            "lsn": "0L",
            "seq": "0L",
            "known": "'r'",
            "copies": "CAST(NULL AS int)",
            "unsent": "CAST(NULL AS array<int>)",
            "origin": "CAST(NULL AS array<string>)",
        }
        return keys.selectExpr(*[f"{given[name]} AS {name}" for name in STATE])

    def run(self, connection: SqlConnection, chosen: Chosen) -> None:
        """Delete what is not spared."""
        target = read_tables(connection, [self.table]).get(self.table)
        if target is None:
            raise TargetError(
                f"the target has no table {'.'.join(self.table)}",
                detail=f"Rows of it are to be removed at {self.sweep.at}.",
                hint="Make it there as it is at the source.",
            )
        query = f"DELETE FROM {target.rows} t WHERE {self._concerned(target)}"
        if self.stage is not None:
            statements = Statements(self.stage, target)
            spared = f"{chosen.of(self.stage, 0)} AND {statements.same_key}"
            query += f" AND NOT EXISTS (SELECT FROM {self.stage.name} s WHERE {spared})"
        connection.execute(query.encode())

    def _concerned(self, target: TargetTable) -> str:
        """Which rows the sweep is about."""
        names = [self.names[name] for name in self.step.layout.key_names]
        columns = [target.columns[name] for name in names]
        conditions = ["true"]
        for bound, sign in ((self.sweep.low, ">="), (self.sweep.high, "<=")):
            if bound is not None:
                first = columns[0]
                value = f"{_literal(bound)}::text::{first.type}"
                conditions.append(f"t.{quoted(first.name)} {first.operator(sign)} {value}")
        if self.sweep.keys is not None:
            texts = [[key[at] for key in self.sweep.keys] for at in range(len(names))]
            arrays = ", ".join(f"unnest({_literal(column)}::text[])" for column in texts)
            aliases = ", ".join(f"v{at}" for at in range(len(names)))
            same = " AND ".join(
                f"t.{quoted(column.name)} {column.operator('=')} k.v{at}::{column.type}"
                for at, column in enumerate(columns)
            )
            wanted = f"SELECT FROM ROWS FROM ({arrays}) AS k({aliases}) WHERE {same}"
            conditions.append(f"EXISTS ({wanted})")
        return " AND ".join(conditions)


def _literal(value: str | list[str]) -> str:
    return sql.Literal(value).as_string(None)


def staged_sweeps(step: Swept, first: int, pipeline: str, batch: Batch) -> list[StagedSweep]:
    """The sweeps of a step, numbered from ``first`` on."""
    rules, shapes = batch.rules(step.table), batch.shapes
    names = rules.names(column.name for column in step.layout.columns)
    oid = step.layout.shape.oid
    found = []
    for number, sweep in enumerate(step.sweeps, start=first):
        if sweep.partition is None:
            mine = [s for s in shapes.values() if oid in (s.oid, s.root_oid)]
            table = rules.target
        else:
            mine = [s for s in shapes.values() if s.oid == sweep.partition]
            newest = max(mine, key=lambda shape: shape.id)
            table = batch.rules((newest.schema, newest.table)).target
        found.append(StagedSweep(step, sweep, number, pipeline, table, names, tuple(mine)))
    return found
