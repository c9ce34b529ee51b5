"""A target that is a Postgres database, as a verification sees it: one snapshot of all tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pgtide.config.model import Pipeline
from pgtide.config.sinks import PostgresSettings
from pgtide.log.schema import CHANGES
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.postgres.connection import connect
from pgtide.rules import compile_rules
from pgtide.shape import Shape
from pgtide.sinks.postgres.bookkeeping import target_position
from pgtide.spark.layout import TableName
from pgtide.verify.in_flight import bounded, keys_in_flight
from pgtide.verify.logged_keys import Window, logged_rows
from pgtide.verify.moment import NAME, SourceMoment
from pgtide.verify.postgres_side import InFlight, PostgresTable
from pgtide.verify.relations import Relation, holding
from pgtide.verify.replica_planning import Found, ReplicaPlan, plan_replica
from pgtide.verify.replica_side import ReplicaTable, of_target
from pgtide.verify.target_moment import TargetMoment


@dataclass(frozen=True)
class Replica:
    """The tables that a pipeline writes to another database."""

    sink: PostgresSettings
    pipeline: Pipeline
    name: str
    log: Storage
    sessions: int

    def position(self) -> Position | None:
        """The last position that is in the target."""
        with of_target(), connect(self._url, application_name=NAME) as connection:
            return target_position(connection, self.name)

    @contextmanager
    def pinned(self, roots: Sequence[Shape]) -> Iterator[PinnedReplica]:
        names = [self.target_of(root) for root in roots]
        held = TargetMoment(self._url, self.name, names, self.sessions)
        with of_target():
            held.__enter__()
        try:
            yield PinnedReplica(self, held)
        finally:
            held.close()

    def target_of(self, root: Shape) -> TableName:
        pipeline = self.pipeline
        return compile_rules(pipeline.rules, pipeline.routes, root.schema, root.table).target

    @property
    def _url(self) -> str:
        return self.sink.url.reveal()


@dataclass(frozen=True)
class PinnedReplica:
    """The tables at one moment."""

    replica: Replica
    held: TargetMoment

    def check(self) -> None:
        with of_target():
            self.held.check()

    def table(
        self, root: Shape, relations: tuple[Relation, ...], shapes: Mapping[int, Shape]
    ) -> PinnedReplicaTable:
        wanted = self.replica.target_of(root)
        layouts = self.held.layouts
        there = [s for s in layouts.values() if (s.schema, s.table) == wanted]
        found = None
        if there:
            with of_target():
                found = Found(there[0], holding(self.held.keeper, layouts, there[0]))
        plan = plan_replica(self.replica.pipeline, root, relations, shapes, found)
        return PinnedReplicaTable(plan, self.replica, self.held)


@dataclass(frozen=True)
class PinnedReplicaTable:
    """One table at that moment."""

    plan: ReplicaPlan
    replica: Replica
    target: TargetMoment

    @property
    def note(self) -> str:
        return self.plan.note

    def in_flight(self, held: SourceMoment) -> InFlight:
        """The log is read after the target's snapshot was taken: nothing is in that snapshot
        which is not in the log.

        Where all tables change together the target's position says that nothing behind it is
        there. Where each goes at its own pace, a table may be ahead of it.
        """
        together = self.replica.sink.consistency == "transaction"
        window = Window(held.moment, self.target.position if together else None)
        if self.plan.keys:
            return keys_in_flight(self.replica.log, self.plan, window)
        rows = logged_rows(self.replica.log.child(CHANGES), self.plan, window)
        source = PostgresTable(self.plan.source)
        found = source.hashes_of(held.keeper, self.plan.logged_columns, rows)
        return bounded(self.plan, sorted(found))

    def without(self, in_flight: InFlight) -> ReplicaTable:
        return ReplicaTable(self.plan.target, self.target.sessions, in_flight)
