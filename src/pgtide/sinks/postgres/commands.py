"""DDL of a batch: what each command means for the target, and the ones that were left out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import functions as F

from pgtide.config.patterns import TablePatterns
from pgtide.config.rules import Rule
from pgtide.config.sinks import PostgresSettings
from pgtide.errors import ConfigError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Mark
from pgtide.pipeline.escapes import refuse_escapes
from pgtide.pipeline.steps import Reshaped
from pgtide.position import Lsn, Position
from pgtide.postgres.connection import SqlConnection
from pgtide.rules import TableRules
from pgtide.sinks.added_columns import AddedColumns
from pgtide.sinks.postgres.ddl import Place, Replay, plan_ddl
from pgtide.sinks.postgres.ddl_kinds import OF_TABLES, DdlKinds, kind_of
from pgtide.sinks.postgres.ddl_names import CannotReplay, Names, Ruled
from pgtide.sinks.postgres.ddl_payload import Item, Payload, root_of
from pgtide.sinks.postgres.ddl_run import run_ddl
from pgtide.sinks.postgres.leaving import take_out
from pgtide.sinks.postgres.tallies import note_left_out
from pgtide.sinks.postgres.target_tables import enable_triggers
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import TableName

SKIPPED = "pgtide skip"

logger = logging.getLogger(__name__)


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
        found = {
            mark.at: plan_ddl(mark.payload, kinds, self._names, self._place(mark))
            for mark in self._marks
            if mark.at not in self.left_out
        }
        # Before rows are staged: what is hidden is not to be in a stage either.
        run = {at for at, replay in found.items() if not replay.skipped}
        refuse_escapes(self.batch, {mark.at for mark in self._marks} - run)
        return found

    @cached_property
    def moved(self) -> Mapping[Position, Position]:
        """Commands that have to be run before rows which stand before them in the log."""
        early = {at: replay.rows_of for at, replay in self.replays.items() if replay.rows_of}
        if not early:
            return {}
        first = self._first_rows({at.lsn for at in early}, set(early.values()))
        return {at: min(at, first.get((at.lsn, oid), at)) for at, oid in early.items()}

    @property
    def committed(self) -> set[Lsn]:
        """Transactions behind which the target's has to end too."""
        return {at.lsn for at, replay in self.replays.items() if replay.commit_after}

    def run(self, connection: SqlConnection, at: Position) -> None:
        """Do it, in the open transaction."""
        replay = self.replays.get(at)
        mark = next(mark for mark in self.batch.census.marks if mark.at == at)
        if at in self.left_out:
            self._leave_out(connection, mark, SKIPPED)
        elif replay is not None and replay.skipped:
            self._leave_out(connection, mark, replay.skipped)
        elif replay is not None:
            if replay.switched:
                enable_triggers(connection, replay.switched)  # the next rows disable them again
            run_ddl(connection, replay, self._place(mark))

    def leave(
        self, connection: SqlConnection, at: Position, partition: TableName, root: TableName
    ) -> None:
        """See that a partition has no rows in its table behind the command that took it away."""
        if take_out(connection, partition, root) or at in self.left_out:
            return
        mark = next(mark for mark in self.batch.census.marks if mark.at == at)
        raise self._place(mark).refusal(
            Payload(mark.payload),
            "takes rows away that the target cannot tell from others",
            f"{'.'.join(root)} has no partitions there: delete those of {'.'.join(partition)} "
            "by hand.",
        )

    def _leave_out(self, connection: SqlConnection, mark: Mark, reason: str) -> None:
        """Say so; not of what tables that are parked will have when they are resumed."""
        if self._concerns(mark, self.batch.parked):
            return
        tag = str(mark.payload.get("tag") or "DDL")
        logger.info("%s at %s is left out: %s", tag, mark.at, reason)
        note_left_out(connection, self.batch.scope.pipeline, mark.at, tag, reason)

    def _place(self, mark: Mark) -> Place:
        veiled = any(self._hidden(table) for table in _tables(mark))
        return Place(self.batch.scope.pipeline, mark.at, veiled)

    @property
    def _marks(self) -> list[Mark]:
        marks = [mark for mark in self.batch.census.marks if mark.op == "ddl"]
        only = self.batch.only  # tables that catch up: all others had it long ago
        return marks if only is None else [*self._late(marks, only)]

    def _late(self, marks: list[Mark], only: frozenset[str]) -> Iterator[Mark]:
        """Commands that waited for some tables, and those that drop what these make."""
        made = set[str]()
        for mark in marks:
            if self._is_late(mark, only):
                made |= {i["identity"] for i in _facts(mark, "objects") if i["type"] == "index"}
                yield mark
            elif made and made.issuperset(_dropped(mark)):
                yield mark  # there was nothing to drop when it came

    def _is_late(self, mark: Mark, only: frozenset[str]) -> bool:
        """Whether a command waited for some tables: what is no table's own did not."""
        own = kind_of(str(mark.payload.get("tag") or ""), None) in OF_TABLES
        return own and self._concerns(mark, only)

    def _concerns(self, mark: Mark, tables: frozenset[str]) -> bool:
        """Whether a command is about some of these tables."""
        return not tables.isdisjoint(".".join(table) for table in _tables(mark))

    def _first_rows(self, lsns: set[Lsn], relations: set[int]) -> dict[tuple[Lsn, int], Position]:
        """In some transactions, where the first row of each relation stands."""
        shapes = {s.id: s.oid for s in self.batch.shapes.values() if s.oid in relations}
        mine = F.col("lsn").isin(*map(int, lsns)) & F.col("shape").isin(0, *shapes)
        rows = self.batch.frame.filter(mine).groupBy("lsn", "shape").agg(F.min("seq")).collect()
        found: dict[tuple[Lsn, int], Position] = {}
        for lsn, shape, seq in rows:
            at, key = Position(Lsn(lsn), seq), (Lsn(lsn), shapes[shape])
            found[key] = min(at, found.get(key, at))
        return found

    @cached_property
    def _names(self) -> Names:
        patterns = TablePatterns(self.batch.settings.tables)
        parked, only = self.batch.parked, self.batch.only
        known = {(shape.schema, shape.table) for shape in self.batch.shapes.values()}
        return Names(
            selects=lambda table: (
                patterns.matches(*table)
                and ".".join(table) not in parked
                and (only is None or ".".join(table) in only)
            ),
            chosen=lambda table: patterns.matches(*table),
            # A pattern may fit any word of a statement: only what has rows is sent elsewhere.
            target=lambda table: self.batch.rules(table).target if table in known else table,
            reshapes=self._reshapes,
            ruled=self._ruled,
            hidden=self._hidden,
            filtered=self._filtered,
            alike=lambda one, other: self._said(one) == self._said(other),
            routed=bool(self.batch.settings.routes),
            knows=lambda table: table in known,
            crossed=self._crossed(known),
        )

    def _crossed(self, known: Collection[TableName]) -> frozenset[str]:
        moves = [(table[0], self.batch.rules(table).target[0]) for table in known]
        left = {source for source, target in moves if source != target}
        return frozenset(left & {target for source, target in moves if source != target})

    def _reshapes(self, table: TableName, columns: Collection[str]) -> bool:
        rules = self.batch.rules(table)
        ways = [step.rule for step in rules.rules if not (step.rule.filter or step.rule.transform)]
        if not ways and not (rules.route and rules.route.rename):
            return False
        try:
            left = rules.names(columns)
        except ConfigError:  # what of them is left cannot be told
            return True
        return any(left.get(name) != name for name in columns)

    def _hidden(self, table: TableName) -> frozenset[str]:
        transforms = (step.rule.transform for step in self.batch.rules(table).rules)
        return frozenset(each.column for each in transforms if each is not None)

    def _filtered(self, table: TableName) -> frozenset[str]:
        filters = (step.rule.filter for step in self.batch.rules(table).rules)
        return frozenset(f.column for f in filters if f is not None and f.column is not None)

    def _said(self, table: TableName) -> list[Rule]:
        """The rules of a table, but for what they call it."""
        steps = self.batch.rules(table).rules
        return [step.rule.model_copy(update={"table": "*.*"}) for step in steps]

    def _ruled(self, table: TableName, at: Position, given: Sequence[str]) -> Ruled:
        """What rules make of new columns, in rows that are there; ``given``: with defaults."""
        steps = (step for work in self.batch.work for step in work.steps)
        found = (s for s in steps if isinstance(s, Reshaped) and (s.table, s.at) == (table, at))
        step, rules = next(found, None), self.batch.rules(table)
        if step is None or not rules.rules:
            return Ruled()
        added, unread = self._added(step, rules), False
        if added.hinges:
            added, unread = self._hinging(step, added)
        columns = step.layout.columns
        changed = rules.transformed(c.name for c in columns) & {*given, *added.names}
        if not changed <= added.known:
            raise CannotReplay(
                f"rules change the new column {min(changed - added.known)}, and what its default "
                "gives to rows that are there is not known"
            )
        texts = [c.text.alias(c.name) for c in added.cells() if c.name in changed]
        row = added.row().select(*texts).first() if texts else None
        values = {} if row is None else row.asDict()
        nulls = {c.name for c in columns if step.added.get(c.attnum or 0, "") is None}
        return Ruled({n: v for n, v in values.items() if v is not None or n not in nulls}, unread)

    def _hinging(self, step: Reshaped, added: AddedColumns) -> tuple[AddedColumns, bool]:
        """What is known without the rows, and whether nothing will bring the rest.

        New columns without a default are NULL until rows are read again, others must not be.
        """
        defaults = {attnum: text for attnum, text in step.added.items() if text is not None}
        given = self._added(replace(step, added=defaults), added.rules)
        if given.hinges:
            raise CannotReplay(
                "rows that are there get a default, of which rules make something that hinges on "
                "each row: a filter looks at the new column, or SQL at others. Done by hand, it "
                "wants the column without its default, and then: "
                f"pgtide refresh {'.'.join(step.table)}"
            )
        if not self.batch.can_read_again(step.layout):
            return given, True
        self.batch.read_again(step.layout, step.at, added.why)
        return given, False

    def _added(self, step: Reshaped, rules: TableRules) -> AddedColumns:
        layout = step.layout.sized(self.batch.settings.unbounded_numeric)
        return AddedColumns(self.batch.spark, step, rules, CellReader(layout))


def _tables(mark: Mark) -> set[TableName]:
    """The relations that a command is about; of partitions their root."""
    items = (*_facts(mark, "objects"), *_facts(mark, "dropped"))
    return {root_of(item) for item in items if item.get("name")}


def _facts(mark: Mark, name: str) -> Sequence[Item]:
    return mark.payload.get(name) or ()


def _dropped(mark: Mark) -> set[str]:
    """What a command names to be dropped; what no statement names if there is nothing."""
    originals = (item for item in _facts(mark, "dropped") if item["original"])
    return {item["identity"] for item in originals} or {""}


def read_left_out(connection: SqlConnection, pipeline: str) -> frozenset[Position]:
    """The commands that somebody decided to leave out."""
    query = "SELECT lsn::text, seq FROM pgtide.skipped WHERE pipeline = %s"
    found = connection.execute(query, [pipeline]).fetchall()
    return frozenset(Position(Lsn.parse(lsn), seq) for lsn, seq in found)
