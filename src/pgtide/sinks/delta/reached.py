"""How far a table has come: a position that is committed together with its rows.

Delta keeps a number per application id. Here it is an LSN: the table has everything that was
committed up to it. Being no number of a batch, it holds whatever became of the checkpoint.

A write may end inside a transaction, where DDL stands in its middle or where it is larger
than a batch. Then the rows of that transaction are a write of their own, under an id of that
transaction, and the number is the ``seq`` up to which it is there. Which transaction that is
stands in a property, set before: after a lost checkpoint batches end elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from deltalake import DeltaTable, Transaction
from pyspark.sql import DataFrame

from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Rows, Step, Swept, position_of
from pgtide.position import Lsn, Position
from pgtide.sinks.delta.appending import append, note
from pgtide.sinks.delta.target import PARTLY_PROPERTY, Target, transaction_of

REACHED = "pgtide/reached"


@dataclass(frozen=True)
class Portion:
    """Rows that are written at once, and the id that says that they are there."""

    step: Rows
    id: Transaction
    partial: bool  # the rest of a transaction is to follow

    def announce(self, target: Target) -> None:
        """Have the table say which transaction it may have a part of."""
        if self.partial:
            _announce(target, self.step.high.lsn)

    def append(self, target: Target, rows: DataFrame, marks: Sequence[Transaction] = ()) -> None:
        """Write rows of the table."""
        append(target, rows, self.id, marks)


def has(target: Target, at: Position) -> bool:
    """Whether the table has all up to a position."""
    table = target.open()
    return table is not None and at < first_missing(table)


def has_begun(target: Target) -> bool:
    """Whether changes of rows have come to the table, be it that none of them stayed."""
    return has(target, Position(Lsn(0)))


@contextmanager
def emptying(target: Target, at: Position, *, inside: bool) -> Iterator[None]:
    """Deletes in here are a TRUNCATE, and say that all before it is done: void, it was not written.

    All that was committed before, or, ``inside``, its own transaction up to there as well.
    """
    id = Transaction(REACHED, int(at.lsn) - 1)
    if inside:
        _announce(target, at.lsn)
        id = Transaction(_part_id(at.lsn), at.seq)
    if target.written(id):
        yield
        return
    with target.idempotent(id):
        yield
    note(target, id)  # Spark commits nothing where there was nothing to delete


def _announce(target: Target, lsn: Lsn) -> None:
    """Have the table say which transaction it may have a part of; all before that is there."""
    table = target.open()
    assert table is not None, "it was made ready"
    first = first_missing(table)
    if first.seq and first.lsn != lsn:
        # It has parts of another, and nobody would know any more.
        note(target, Transaction(REACHED, int(lsn) - 1))
    target.set_properties({PARTLY_PROPERTY: str(lsn)})


def writes(
    batch: Batch, target: Target, step: Rows, later: Sequence[Step]
) -> Iterator[tuple[Portion, DataFrame]]:
    """What is left to write of a step, with its events; ``later`` steps follow it."""
    for portion in pending(target, step, cut=is_cut(batch, step, later)):
        if portion is None:
            batch.skip_write(step.table)
            continue
        events = batch.rows(portion.step)
        # An id for each such transaction remains in the table: not without need.
        if not portion.partial or not events.isEmpty():
            portion.announce(target)
            yield portion, events


def pending(target: Target, step: Rows, *, cut: bool) -> Iterator[Portion | None]:
    """What is left to write of a step, None for a write that the table has.

    ``cut``: the step ends inside a transaction, or may do so.
    """
    table = target.open()
    assert table is not None, "it was made ready"
    first = first_missing(table)
    for portion in _portions(step) if cut else [_upto(step)]:
        low = max(portion.step.low, first)
        rows = replace(portion.step, low=low)
        yield replace(portion, step=rows) if low <= rows.high else None


def first_missing(table: DeltaTable) -> Position:
    """Where what a table does not have begins, be it inside a transaction."""
    reached = transaction_of(table, REACHED)
    partly = Lsn.parse(table.metadata().configuration.get(PARTLY_PROPERTY, "0/0"))
    seq = transaction_of(table, _part_id(partly)) if partly > reached else -1
    return Position(partly, seq + 1) if seq >= 0 else Position(Lsn(reached + 1))


def _part_id(lsn: Lsn) -> str:
    return f"{REACHED}/{lsn}"


def is_cut(batch: Batch, step: Rows, later: Sequence[Step]) -> bool:
    """Whether more of the step's last transaction may come."""
    end = step.high.lsn
    if not batch.census.whole and batch.census.high is not None and batch.census.high.lsn == end:
        return True
    return any(position_of(other).lsn <= end for other in later if _waits(other))


def _waits(step: Step) -> bool:
    """Whether a step needs rows behind it to be written after it."""
    return not isinstance(step, Swept) or step.cuts


def _portions(step: Rows) -> list[Portion]:
    end, portions = step.high.lsn, []
    if step.low.lsn < end:
        portions.append(_upto(replace(step, high=Position.end_of(Lsn(end - 1)))))
    if step.high.seq >= 0:
        rows = replace(step, low=max(step.low, Position(end)))
        portions.append(Portion(rows, Transaction(_part_id(end), step.high.seq), partial=True))
    return portions


def _upto(step: Rows) -> Portion:
    return Portion(step, Transaction(REACHED, int(step.high.lsn)), partial=False)
