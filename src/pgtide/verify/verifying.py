"""Verifying the tables of a pipeline, a group of them in each snapshot of the source."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from pgtide.config.model import Config
from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import ConfigError, Yielded
from pgtide.log.reader import Log
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.catalog import read_layouts, selects
from pgtide.postgres.connection import connect
from pgtide.rules import TableRules, compile_rules
from pgtide.shape import Shape
from pgtide.spark.layout import TableName
from pgtide.verify.comparing import Comparison, Pace, Part
from pgtide.verify.lake import Lake
from pgtide.verify.moment import NAME, SourceMoment, nudge
from pgtide.verify.planning import Refused, refusal, refuse_rules
from pgtide.verify.postgres_side import PostgresTable
from pgtide.verify.readiness import Readiness
from pgtide.verify.relations import quoted_name, read_relations
from pgtide.verify.replica import Replica
from pgtide.verify.report import PipelineReport, TableReport
from pgtide.verify.spark_when_needed import SparkWhenNeeded, started
from pgtide.verify.target_side import verifying_session
from pgtide.verify.targets import PinnedTable, PinnedTargets, Targets

GROUP_PAGES = 131_072  # of tables that share a snapshot: 1 GB
GROUP_TABLES = 50
SESSIONS = 2
ATTEMPTS = 3  # to compare tables that others need for themselves
PAUSE_S = 10.0
NEEDED = "others wait for the table: try again later"
DROPPED = "it was dropped meanwhile"

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
        self, spark: SparkWhenNeeded, config: Config, pipeline: str, options: Options | None = None
    ) -> None:
        self._options = options or Options()
        self._config = config
        self._name = pipeline
        self._settings = config.pipelines[pipeline]
        self._spark = spark
        self._storage = Storage(config.log.path, config.log.storage)
        self._url = config.source.url.reveal()

    def run(self) -> PipelineReport:
        """Compare; never an error because tables differ."""
        report = PipelineReport(self._name, refused=refusal(self._settings))
        if report.refused:
            return report
        if self._options.sample is not None:
            report.seed = self._options.seed
        self._targets = self._open_targets()
        self._readiness = Readiness(
            self._spark,
            self._config,
            self._name,
            self._options.stop,
            self._options.run_here,
            self._targets.position,
        )
        for group in self._groups(self._tables(), report):
            report.tables += self._attempts(group)
        report.tables.sort(key=lambda table: table.table)
        return report

    def _open_targets(self) -> Targets:
        sink = self._settings.sink
        if isinstance(sink, PostgresSettings):
            return Replica(sink, self._settings, self._name, self._storage, self._sessions)
        spark = verifying_session(started(self._spark))
        return Lake(spark, self._settings, self._storage, self._options.gentle)

    @property
    def _sessions(self) -> int:
        """That read a database at the same time."""
        wanted = 1 if self._options.gentle else self._config.history.parallelism or SESSIONS
        return min(wanted, os.cpu_count() or 1, 8)

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
            self._shared = self._shared_targets(layouts)
            found = read_relations(probe, self._config.source.slot, layouts, roots)
        if self._options.tables and not roots:
            raise ConfigError(
                f"pipeline {self._name} has no table {', '.join(self._options.tables)}",
                hint="See source.tables and the pipeline's tables.",
            )
        pages = {oid: sum(r.pages for r in relations) for oid, relations in found.items()}
        return [(root, self._members(root, layouts), pages[root.oid]) for root in roots]

    def _shared_targets(self, layouts: Mapping[int, Shape]) -> set[TableName]:
        """Tables of a database that several of the source go to; a mirror has one for each."""
        if not isinstance(self._settings.sink, PostgresSettings):
            return set()
        wanted = TablePatterns(self._settings.tables)
        targets = Counter(
            self._rules(shape).target
            for shape in layouts.values()
            if not shape.root_oid
            and wanted.matches(shape.schema, shape.table)
            and self._members(shape, layouts)
        )
        return {target for target, tables in targets.items() if tables > 1}

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
        refuse_rules(self._rules(root))
        if self._rules(root).target in self._shared:
            raise Refused("other tables go into the same one of the target")

    def _rules(self, root: Shape) -> TableRules:
        settings = self._settings
        return compile_rules(settings.rules, settings.routes, root.schema, root.table)

    # -- one group ----------------------------------------------------------------------------

    def _as_now(self, group: Group, tables: dict[str, TableReport]) -> Group:
        """The tables as they are called by now; it may be long since they were listed."""
        with connect(self._url, application_name=NAME) as probe:
            layouts = read_layouts(probe)
        for root, _ in group:
            if root.oid not in layouts:
                tables[root.name] = TableReport(root.name, refused=DROPPED)
        there = [layouts[root.oid] for root, _ in group if root.oid in layouts]
        return [(root, self._members(root, layouts)) for root in there]

    def _verify(
        self,
        group: Group,
        tables: dict[str, TableReport],
        part: Part | None,
    ) -> Part | None:
        """Compare tables in one snapshot; the next part of one that is compared in parts."""
        group = self._as_now(group, tables)
        names = {shape.oid: quoted_name(shape) for _, members in group for shape in members}
        following = None
        with ExitStack() as stack:
            stack.enter_context(self._readiness)
            self._catch_up([shape.name for _, members in group for shape in members])
            held = stack.enter_context(SourceMoment(self._url, names, self._sessions))
            pinned, targets = self._pin(stack, held, group, tables)
            self._readiness.leave()

            def check() -> None:
                held.check()
                targets.check()

            for table, target in pinned:
                began = time.monotonic()
                found = target.in_flight(held)
                comparison = Comparison(
                    plan=target.plan,
                    source=PostgresTable(target.plan.source, found),
                    target=target.without(found),
                    sessions=held.sessions,
                    sample=self._options.sample,
                    seed=self._options.seed,
                    part=part,
                    pace=Pace(self._options.rate, check, self._options.stop),
                    on_progress=self._shown(table.table),
                )
                table.in_flight += len(found)
                following = comparison.fill(table)
                table.seconds += time.monotonic() - began
        return following

    def _pin(
        self,
        stack: ExitStack,
        held: SourceMoment,
        group: Group,
        tables: dict[str, TableReport],
    ) -> tuple[list[tuple[TableReport, PinnedTable]], PinnedTargets]:
        """Wait until the targets have what the snapshot sees, and hold them as they are then."""
        layouts = read_layouts(held.keeper)
        known = {root.oid: {shape.oid for shape in members} for root, members in group}
        roots = [layouts[oid] for oid in known if oid in layouts]
        relations = read_relations(held.keeper, self._config.source.slot, layouts, roots)
        self._readiness.reach(held.moment.after, held.check)
        shapes = Log(self._config.log.path, self._config.log.storage).shapes()
        targets = stack.enter_context(self._targets.pinned(roots))
        state = self._readiness.state()
        parked = {} if state is None else state.parked
        pinned = []
        for root in roots:
            table = tables.setdefault(root.name, TableReport(root.name, oid=root.oid))
            table.position, table.sample = str(held.moment.after), self._options.sample
            mine = tuple(r for r in relations[root.oid] if r.oid in known[root.oid])
            try:
                self._refuse_unread([layouts[oid] for oid in known[root.oid] if oid in layouts])
                if root.name in parked:
                    resume = f"pgtide resume --pipeline {self._name}"
                    raise Refused(f"the pipeline has parked it: {resume}")
                for reason in filter(None, (relation.refused for relation in mine)):
                    raise Refused(reason)
                target = targets.table(root, mine, shapes)
            except Refused as refused:
                table.refused = str(refused)
                continue
            table.key = tuple(key.name for key in target.plan.keys)
            table.left_out, table.note = dict(target.plan.left_out), target.note
            pinned.append((table, target))
        return pinned, targets

    def _refuse_unread(self, members: Sequence[Shape]) -> None:
        store = RefreshStore(self._storage)
        if any(store.completing(shape.name, shape.oid) for shape in members):
            raise Refused("its rows are still being read from the source")

    def _shown(self, table: str) -> Callable[[int, int], None] | None:
        tell = self._options.on_progress
        return None if tell is None else lambda done, of: tell(table, done, of)
