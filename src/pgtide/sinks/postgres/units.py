"""Units: what one transaction of the target does, in order.

A batch is one unit, unless something has to be committed by itself: the end of a snapshot,
commands whose effect can be used only behind their transaction, what tables that were written on
their own have to themselves. Between the commands of a unit lie segments of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.log.reader import Log
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.census import Mark
from pgtide.pipeline.file_census import Between
from pgtide.pipeline.steps import Rows, Swept, TableWork
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.sinks.postgres.commands import Commands
from pgtide.sinks.postgres.parts import part_of
from pgtide.sinks.postgres.staged_rows import TableRows
from pgtide.spark.layout import Layout, TableName


@dataclass(frozen=True)
class RowsOf:
    """Apply the rows of a segment."""

    segment: int


@dataclass(frozen=True)
class Truncate:
    """Empty tables, all at once as at the source."""

    at: Position
    tables: tuple[TableName, ...]
    restart_identity: bool


@dataclass(frozen=True)
class Command:
    """Replay a DDL."""

    at: Position


@dataclass(frozen=True)
class SweepOf:
    """Delete what a refresh has not seen."""

    step: Swept


@dataclass(frozen=True)
class Left:
    """A partition has left its table: unless the command before it took it along, its rows go."""

    command: Position
    partition: TableName
    root: TableName


LEFT = ("detach partition", "drop partition")  # what a sweep says that follows such a command

Action: TypeAlias = RowsOf | Truncate | Command | SweepOf | Left


@dataclass(frozen=True)
class Unit:
    """One transaction."""

    batch: Batch
    commands: Commands
    tables: tuple[TableRows, ...]
    cuts: tuple[Position, ...]
    actions: tuple[Action, ...]

    @property
    def parts(self) -> dict[str, frozenset[str]]:
        """Tables that may be written apart from each other; none where commands are in between."""
        if any(isinstance(action, Command | Truncate) for action in self.actions):
            return {}
        return {
            work.name: frozenset(".".join(table) for table in work.tables)
            for work in self.batch.work
        }

    @property
    def without_rows(self) -> Unit:
        """What is left to say when the rows are in their tables."""
        return replace(self, tables=(), cuts=(), actions=())

    @property
    def high(self) -> Position:
        high = self.batch.census.high
        assert high is not None, "a batch without rows is no unit"
        return high


def units_of(batch: Batch, commands: Commands, ahead: Set[Lsn], log: Log) -> Iterator[Unit]:
    """The transactions that a batch is applied in; ``ahead``: where some tables are already.

    A unit ends there, so that no command is behind which tables are not as far as others.
    """
    high = batch.census.high
    assert high is not None, "a batch has rows"
    ends = {*commands.committed, *ahead, Lsn(batch.source.snapshot - 1)}
    cuts = sorted(lsn for lsn in ends if batch.census.low.lsn <= lsn < high.lsn)
    if not cuts:
        yield unit_of(batch, commands)
        return
    low = batch.census.low
    with _kept(batch.frame) as whole:  # each unit looks through all of it
        for end in (*(Position.end_of(cut) for cut in cuts), high):
            # Each table of a unit, and each attempt, looks through the unit.
            with _kept(whole.filter(F.col("lsn").between(int(low.lsn), int(end.lsn)))) as frame:
                part = part_of(batch, frame, Between(low, end), log)
                if part is not None:
                    yield unit_of(part, commands)
            low = Position(Lsn(end.lsn + 1))


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Rows that are read several times, as objects: unpacking them anew took most of the time."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK_DESER)
    try:
        yield kept
    finally:
        kept.unpersist()


def unit_of(batch: Batch, commands: Commands) -> Unit:
    """Everything that a batch does, in order."""
    moved = commands.moved
    selected = frozenset(table for work in batch.work for table in work.tables)
    rows = [step for work in batch.work for step in work.steps if isinstance(step, Rows)]
    barriers: list[tuple[Position, Action]] = list(_sweeps(batch))
    barriers += _truncates(batch, selected)
    barriers += [
        (moved.get(mark.at, mark.at), Command(mark.at))
        for mark in batch.census.marks
        if mark.op == "ddl"
    ]
    barriers.sort(key=lambda pair: pair[0])
    cuts = sorted({at for at, _ in barriers} | _layout_changes(batch.work))
    actions: list[Action] = [RowsOf(0)]
    for number, cut in enumerate(cuts, start=1):
        actions += [action for at, action in barriers if at == cut]
        actions.append(RowsOf(number))
    return Unit(batch, commands, tuple(_tables(batch, rows)), tuple(cuts), tuple(actions))


def _sweeps(batch: Batch) -> Iterable[tuple[Position, Action]]:
    """What refreshes have not found any more, and partitions that are no longer of their table."""
    left = {
        mark.at: mark
        for mark in batch.census.marks
        if mark.op == "sweep" and mark.payload.get("refresh") in LEFT
    }
    steps = (step for work in batch.work for step in work.steps)
    for step in (step for step in steps if isinstance(step, Swept)):
        for sweep in step.sweeps:
            if sweep.at in left:
                yield sweep.at, _left(batch, left[sweep.at])
            else:
                yield sweep.at, SweepOf(replace(step, at=sweep.at, sweeps=(sweep,)))


def _left(batch: Batch, sweep: Mark) -> Left:
    assert sweep.shape is not None
    partition = batch.shapes[sweep.shape]
    commands = (mark.at for mark in batch.census.marks if mark.op == "ddl" and mark.at < sweep.at)
    root = batch.rules(partition.home_name).target
    return Left(max(commands, default=sweep.at), _target(batch, partition), root)


def _layout_changes(works: Iterable[TableWork]) -> set[Position]:
    """Where rows of a table begin that have another layout, whether or not a command says so."""
    found = set()
    for work in works:
        rows = [step for step in work.steps if isinstance(step, Rows)]
        found |= {later.low for earlier, later in pairwise(rows) if earlier.layout != later.layout}
    return found


def _truncates(batch: Batch, selected: frozenset[TableName]) -> list[tuple[Position, Action]]:
    """Truncated tables; those of one command follow one another."""
    marks = [mark for mark in batch.census.marks if mark.op == "truncate"]
    numbered = [(mark.at.lsn, mark.at.seq - n, mark) for n, mark in enumerate(marks)]
    found: list[tuple[Position, Action]] = []
    for _, group in groupby(numbered, key=lambda item: (item[0], item[1])):
        together = [mark for _, _, mark in group]
        tables = []
        for mark in together:
            assert mark.shape is not None
            shape = batch.shapes[mark.shape]
            if Layout.of(shape, batch.shapes).table in selected:
                tables.append(_target(batch, shape))
        if tables:
            restart = any(mark.payload.get("restart_identity") for mark in together)
            at = together[0].at
            found.append((at, Truncate(at, tuple(dict.fromkeys(tables)), restart)))
    return found


def _target(batch: Batch, shape: Shape) -> TableName:
    """What a table is called in the target; partitions have names of their own."""
    return batch.rules((shape.schema, shape.table)).target


def _tables(batch: Batch, steps: Sequence[Rows]) -> Iterable[TableRows]:
    """The rows of each table and layout."""
    by_layout: dict[Layout, list[Rows]] = {}
    for step in steps:
        by_layout.setdefault(step.layout, []).append(step)
    for layout, mine in by_layout.items():
        shapes = {shape.id: shape for step in mine for shape in step.shapes}
        traits = mine[0].traits
        for step in mine[1:]:
            traits = traits.joined(step.traits)
        counts = [count for count in batch.census.counts if count.shape in shapes]
        ops = {count.op for count in counts} & {"insert", "update", "delete", "read"}
        one_snapshot = len({lsn for c in counts for lsn in (c.low.lsn, c.high.lsn)}) == 1
        once = ops == {"insert"} or (ops == {"read"} and one_snapshot)
        rules = batch.rules(layout.table)
        typed = layout.sized(batch.settings.unbounded_numeric)  # for rules: rows stay texts
        yield TableRows(typed, tuple(shapes.values()), traits, once, rules)
