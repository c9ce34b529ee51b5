"""DDL of a batch: what each command means for the target, and the ones that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import functions as F

from pgtide.config.patterns import TablePatterns
from pgtide.config.sinks import PostgresSettings
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Mark
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.ddl import Place, Replay, plan_ddl
from pgtide.sinks.postgres.ddl_kinds import DdlKinds
from pgtide.sinks.postgres.ddl_names import Names
from pgtide.sinks.postgres.ddl_run import run_ddl
from pgtide.spark.layout import TableName


@dataclass(frozen=True)
class Commands:
    """The commands of one batch."""

    settings: PostgresSettings
    batch: Batch
    left_out: frozenset[Position]  # by ``pgtide skip``

    @cached_property
    def replays(self) -> dict[Position, Replay]:
        """What is to be done, by the command's place in the log."""
        kinds = DdlKinds(self.settings.ddl)
        return {
            mark.at: plan_ddl(mark.payload, kinds, self._names, self._place(mark.at))
            for mark in self._marks
            if mark.at not in self.left_out
        }

    @cached_property
    def moved(self) -> Mapping[Position, Position]:
        """Commands that have to be run before rows which stand before them in the log."""
        early = {at: replay.rows_of for at, replay in self.replays.items() if replay.rows_of}
        return {at: self._first_row(at, oid) for at, oid in early.items()}

    @property
    def committed(self) -> set[Lsn]:
        """Transactions behind which the target's has to end too."""
        return {at.lsn for at, replay in self.replays.items() if replay.commit_after}

    def run(self, connection: SqlConnection, at: Position) -> None:
        """Do it, in the open transaction."""
        replay = self.replays.get(at)
        if replay is not None and not replay.skipped:
            run_ddl(connection, replay, self._place(at))

    def _place(self, at: Position) -> Place:
        return Place(self.batch.mark.pipeline, at)

    @property
    def _marks(self) -> list[Mark]:
        return [mark for mark in self.batch.census.marks if mark.op == "ddl"]

    def _first_row(self, at: Position, oid: int) -> Position:
        ids = [shape.id for shape in self.batch.shapes.values() if shape.oid == oid]
        mine = self.batch.frame.filter((F.col("lsn") == int(at.lsn)) & F.col("shape").isin(0, *ids))
        row = mine.filter(F.col("seq") < at.seq).agg(F.min("seq")).head()
        return at if row is None or row[0] is None else Position(at.lsn, row[0])

    @cached_property
    def _names(self) -> Names:
        selected = TablePatterns(self.batch.settings.tables)
        known = {(shape.schema, shape.table) for shape in self.batch.shapes.values()}
        return Names(
            selects=lambda table: selected.matches(*table),
            target=lambda table: self.batch.rules(table).target,
            reshapes=self._reshapes,
            routed=bool(self.batch.settings.routes),
            knows=lambda table: table in known,
        )

    def _reshapes(self, table: TableName) -> bool:
        rules = self.batch.rules(table)
        columns = any(s.rule.exclude or s.rule.include or s.rule.rename for s in rules.rules)
        return columns or bool(rules.route and rules.route.rename)


def read_left_out(connection: SqlConnection, pipeline: str) -> frozenset[Position]:
    """The commands that somebody decided to leave out."""
    query = "SELECT lsn::text, seq FROM pgtide.skipped WHERE pipeline = %s"
    found = connection.execute(query, [pipeline]).fetchall()
    return frozenset(Position(Lsn.parse(lsn), seq) for lsn, seq in found)
