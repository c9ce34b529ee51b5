"""Verifying the tables of a pipeline, a group of them in each snapshot of the source."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pyspark.sql import SparkSession

from pgtide.config.model import Config
from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import DeltaSettings
from pgtide.errors import ConfigError, Yielded
from pgtide.log.reader import Log
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import connect
from pgtide.rules import compile_rules
from pgtide.shape import Shape
from pgtide.sinks.delta.target import Target
from pgtide.verify.comparing import Comparison, Pace, Part
from pgtide.verify.in_flight import rows_in_flight
from pgtide.verify.moment import NAME, SourceMoment, nudge
from pgtide.verify.planning import Refused, TablePlan, plan_table, refusal, refuse_rules
from pgtide.verify.readiness import Readiness
from pgtide.verify.relations import Relation, quoted_name, read_relations
from pgtide.verify.report import PipelineReport, TableReport
from pgtide.verify.source_side import SourceTable
from pgtide.verify.target_side import TargetTable, verifying_session

GROUP_PAGES = 131_072  # of tables that share a snapshot: 1 GB
GROUP_TABLES = 50
SESSIONS = 2
ATTEMPTS = 3  # to compare tables that others need for themselves
PAUSE_S = 10.0
NEEDED = "others wait for the table: try again later"

Group: TypeAlias = list[tuple[Shape, list[Shape]]]  # tables, each with its relations
OnProgress = Callable[[str, int, int], None]
"""Called with a table, the parts of it that are done, and how many there are."""


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    tables: Sequence[str] = ()  # patterns; all when there are none
    only: Sequence[str] = ()  # names, exactly; all when there are none
    sample: float | None = None  # the share of ranges
    seed: str = ""
    rate: float | None = None  # rows a second that are read of the source
    part_rows: int | None = None  # of a large table that share a snapshot, where that can be
    gentle: bool = False  # leave Spark to the pipelines: one session, one core
    run_here: bool = True  # whether capture and pipeline may be run here
    stop: threading.Event = field(default_factory=threading.Event)
    on_progress: OnProgress | None = None


class Verification:
    """One pass over tables of a pipeline."""

    def __init__(
        self, spark: SparkSession, config: Config, pipeline: str, options: Options | None = None
    ) -> None:
        self._options = options or Options()
        self._config = config
        self._name = pipeline
        self._settings = config.pipelines[pipeline]
        self._spark = verifying_session(spark)
        self._storage = Storage(config.log.path, config.log.storage)
        self._url = config.source.url.reveal()
        self._readiness = Readiness(
            spark, config, pipeline, self._options.stop, self._options.run_here
        )

    def run(self) -> PipelineReport:
        """Compare; never an error because tables differ."""
        report = PipelineReport(self._name, refused=refusal(self._settings))
        if report.refused:
            return report
        if self._options.sample is not None:
            report.seed = self._options.seed
        for group in self._groups(self._tables(), report):
            report.tables += self._attempts(group)
        report.tables.sort(key=lambda table: table.table)
        return report

    def _attempts(self, group: Group) -> list[TableReport]:
        """Compare the tables of a group; again, one by one, when somebody needed one of them."""
        for attempt in range(ATTEMPTS):
            tables: dict[str, TableReport] = {}
            part = None if self._options.part_rows is None else Part(self._options.part_rows)
            try:
                while (part := self._verify(group, tables, part)) is not None:
                    pass
            except Yielded:
                if len(group) > 1:
                    return [table for one in group for table in self._attempts([one])]
                if self._options.stop.wait(PAUSE_S * attempt):
                    raise
            else:
                return list(tables.values())
        return [TableReport(root.name, refused=NEEDED) for root, _ in group]

    def _catch_up(self, tables: Sequence[str]) -> None:
        """Without a snapshot, so that one is held, and rows are in flight, for less time.

        What capture finds out only now counts as well: of a partition that was attached, it
        writes all rows.
        """
        with connect(self._url, application_name=NAME) as probe:
            nudge(probe)
            row = probe.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self._readiness.reach(Lsn.parse(row[0]))
        self._readiness.settle(tables)

    # -- which tables -----------------------------------------------------------------------

    def _tables(self) -> list[tuple[Shape, list[Shape], int]]:
        """Tables with their partitions, and how many pages they have."""
        with connect(self._url, application_name=NAME) as probe:
            layouts = read_layouts(probe)
            roots = self._roots(layouts)
            found = read_relations(probe, self._config.source.slot, layouts, roots)
        if self._options.tables and not roots:
            raise ConfigError(
                f"pipeline {self._name} has no table {', '.join(self._options.tables)}",
                hint="See source.tables and the pipeline's tables.",
            )
        pages = {oid: sum(r.pages for r in relations) for oid, relations in found.items()}
        return [(root, self._members(root, layouts), pages[root.oid]) for root in roots]

    def _roots(self, layouts: Mapping[int, Shape]) -> list[Shape]:
        wanted = TablePatterns(self._settings.tables)
        asked = TablePatterns(list(self._options.tables)) if self._options.tables else None
        found = [
            shape
            for shape in layouts.values()
            if not shape.root_oid
            and wanted.matches(shape.schema, shape.table)
            and (asked is None or asked.matches(shape.schema, shape.table))
            and (not self._options.only or shape.name in self._options.only)
            and self._members(shape, layouts)
        ]
        return sorted(found, key=lambda shape: shape.name)

    def _members(self, root: Shape, layouts: Mapping[int, Shape]) -> list[Shape]:
        """The table and its partitions, as far as they are captured."""
        captured = TablePatterns(self._config.source.tables)
        members = [root, *(s for s in layouts.values() if s.root_oid == root.oid)]
        return [shape for shape in members if selects(captured, shape)]

    def _groups(
        self, tables: list[tuple[Shape, list[Shape], int]], report: PipelineReport
    ) -> Iterator[Group]:
        group: Group = []
        pages = 0
        for root, members, size in tables:
            try:
                self._refuse_early(root)
            except Refused as reason:
                report.tables.append(TableReport(root.name, refused=str(reason)))
                continue
            alone = self._options.part_rows is not None
            if group and (alone or pages + size > GROUP_PAGES or len(group) >= GROUP_TABLES):
                yield group
                group, pages = [], 0
            group.append((root, members))
            pages += size
        if group:
            yield group

    def _refuse_early(self, root: Shape) -> None:
        rules = self._settings.rules, self._settings.routes
        refuse_rules(compile_rules(*rules, root.schema, root.table))

    # -- one group ----------------------------------------------------------------------------

    def _verify(
        self,
        group: Group,
        tables: dict[str, TableReport],
        part: Part | None,
    ) -> Part | None:
        """Compare tables in one snapshot; the next part of one that is compared in parts."""
        names = {shape.oid: quoted_name(shape) for _, members in group for shape in members}
        wanted = 1 if self._options.gentle else self._config.history.parallelism or SESSIONS
        sessions = min(wanted, os.cpu_count() or 1, 8)
        following = None
        with ExitStack() as stack:
            stack.enter_context(self._readiness)
            self._catch_up([shape.name for _, members in group for shape in members])
            held = stack.enter_context(SourceMoment(self._url, names, sessions))
            pinned = self._pin(held, group, tables)
            self._readiness.leave()
            for table, plan, version in pinned:
                began = time.monotonic()
                target = TargetTable(self._spark, plan, version, (), self._options.gentle)
                found = rows_in_flight(self._spark, self._storage, plan, held.moment, target)
                comparison = Comparison(
                    source=SourceTable(plan, found),
                    target=replace(target, in_flight=found),
                    sessions=held.sessions,
                    sample=self._options.sample,
                    seed=self._options.seed,
                    part=part,
                    pace=Pace(self._options.rate, held.check, self._options.stop),
                    on_progress=self._shown(table.table),
                )
                table.in_flight += len(found)
                following = comparison.fill(table)
                table.seconds += time.monotonic() - began
        return following

    def _pin(
        self,
        held: SourceMoment,
        group: Group,
        tables: dict[str, TableReport],
    ) -> list[tuple[TableReport, TablePlan, int | None]]:
        """Wait until the mirrors have what the snapshot sees, and choose the version of each."""
        layouts = read_layouts(held.keeper)
        known = {root.oid: {shape.oid for shape in members} for root, members in group}
        roots = [layouts[oid] for oid in known if oid in layouts]
        relations = read_relations(held.keeper, self._config.source.slot, layouts, roots)
        self._readiness.reach(held.moment.after, held.check)
        shapes = Log(self._config.log.path, self._config.log.storage).shapes()
        pinned = []
        for root in roots:
            table = tables.setdefault(root.name, TableReport(root.name))
            table.position, table.sample = str(held.moment.after), self._options.sample
            mine = tuple(r for r in relations[root.oid] if r.oid in known[root.oid])
            try:
                self._refuse_unread([layouts[oid] for oid in known[root.oid] if oid in layouts])
                plan = self._plan(root, mine, shapes)
            except Refused as reason:
                table.refused = str(reason)
                continue
            table.key = tuple(key.name for key in plan.keys)
            table.left_out = dict(plan.left_out)
            opened = plan.target.open()
            pinned.append((table, plan, None if opened is None else opened.version()))
        return pinned

    def _refuse_unread(self, members: Sequence[Shape]) -> None:
        store = RefreshStore(self._storage)
        if any(store.completing(shape.schema, shape.table) for shape in members):
            raise Refused("its rows are still being read from the source")

    def _plan(
        self, root: Shape, relations: tuple[Relation, ...], shapes: Mapping[int, Shape]
    ) -> TablePlan:
        state = self._readiness.state()
        if state is not None and root.name in state.parked:
            raise Refused(f"the pipeline has parked it: pgtide resume --pipeline {self._name}")
        for relation in relations:
            if relation.refused:
                raise Refused(relation.refused)
        sink = self._settings.sink
        assert isinstance(sink, DeltaSettings)
        rules = compile_rules(self._settings.rules, self._settings.routes, root.schema, root.table)
        target = Target.of(self._spark, sink.path, rules.target, sink.storage)
        return plan_table(self._settings, root, relations, shapes, target)

    def _shown(self, table: str) -> Callable[[int, int], None] | None:
        tell = self._options.on_progress
        return None if tell is None else lambda done, of: tell(table, done, of)
