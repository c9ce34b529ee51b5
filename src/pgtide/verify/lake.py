"""Mirrors in a lake as a verification sees them: each at the version that it has when pinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from pgtide.config.model import Pipeline
from pgtide.config.sinks import DeltaSettings
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.rules import compile_rules
from pgtide.shape import Shape
from pgtide.sinks.delta.target import Target
from pgtide.verify.in_flight import rows_in_flight
from pgtide.verify.moment import SourceMoment
from pgtide.verify.planning import TablePlan, plan_table
from pgtide.verify.postgres_side import InFlight
from pgtide.verify.relations import Relation
from pgtide.verify.target_side import TargetTable


@dataclass(frozen=True)
class PinnedMirror:
    """One mirror at one version."""

    plan: TablePlan
    target: TargetTable
    log: Storage
    note: str = ""

    def in_flight(self, held: SourceMoment) -> InFlight:
        return rows_in_flight(self.target.spark, self.log, self.plan, held.moment, self.target)

    def without(self, in_flight: InFlight) -> TargetTable:
        return replace(self.target, in_flight=in_flight)


@dataclass(frozen=True)
class Lake:
    """The mirrors of a pipeline."""

    spark: SparkSession  # as ``verifying_session`` makes it
    pipeline: Pipeline
    log: Storage
    gentle: bool = False  # use one core at most

    def position(self) -> Position | None:
        return None  # each mirror has its own

    @contextmanager
    def pinned(self, roots: Sequence[Shape]) -> Iterator[Lake]:
        yield self  # old versions stay

    def check(self) -> None:
        """Nobody waits for a version."""

    def table(
        self, root: Shape, relations: tuple[Relation, ...], shapes: Mapping[int, Shape]
    ) -> PinnedMirror:
        sink = self.pipeline.sink
        assert isinstance(sink, DeltaSettings)
        rules = compile_rules(self.pipeline.rules, self.pipeline.routes, root.schema, root.table)
        target = Target.of(self.spark, sink.path, rules.target, sink.storage)
        plan = plan_table(self.pipeline, root, relations, shapes, target)
        opened = target.open()
        version = None if opened is None else opened.version()
        return PinnedMirror(plan, TargetTable(self.spark, plan, version, (), self.gentle), self.log)
