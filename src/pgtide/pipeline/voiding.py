"""What a TRUNCATE makes void: to a table that is a state, all that the batch has before it.

Rows that it takes away need not be written, and neither earlier TRUNCATEs nor sweeps be done. It
goes by relation and partition, not by name: renames do not matter. Columns and names are followed
through all of it, so that the table ends as if every step had been done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgtide.pipeline.steps import Rows, Step, Swept, Truncated
from pgtide.spark.layout import Layout, TableName

_Numbered: TypeAlias = tuple[int, Step]  # the number is that among all steps of the work


def what_counts(steps: Sequence[Step], empties: Callable[[Truncated], bool]) -> list[Step]:
    """The steps that are left to do, in order.

    ``empties``: whether nothing stays of the rows that a TRUNCATE takes away. Rows without shapes
    have a layout to be followed, and nothing to be written.
    """
    void = _Void(patched=frozenset(_patched(steps)))
    following: dict[TableName, Layout] = {}  # of rows, while nothing but rows follows them
    counting: list[_Numbered] = []
    for number, step in reversed([*enumerate(steps)]):
        left: Step | None = step
        match step:
            case Truncated():
                left = None if void.has(step.layout, step.partition) else step
                if empties(step):
                    void.add(step)
            case Swept():
                left = void.sweeps_outside(step)
            case Rows():
                rows = void.rows_outside(step)
                left = rows if rows.shapes or following.get(step.table) != step.layout else None
                following[step.table] = step.layout
            case _:
                following.clear()
        if left is not None:
            counting.append((number, left))
    # Where sweeps part rows on purpose, they stay so.
    swept_apart = any(isinstance(step, Swept) and step.cuts for step in steps)
    ordered = counting[::-1] if swept_apart else _joined(counting[::-1])
    return [step for _, step in ordered]


@dataclass
class _Void:
    """What later steps of a batch take away."""

    patched: frozenset[int]  # relations with rows that lack values
    relations: set[int] = field(default_factory=set)
    partitions: set[tuple[int, int]] = field(default_factory=set)  # each with its relation

    def add(self, step: Truncated) -> None:
        relation = step.layout.shape.oid
        if step.partition is None:
            self.relations.add(relation)
        elif relation not in self.patched:
            # A batch that is cut off has rows of other partitions, and passes for done up to
            # there: a row that lacks values would not find the one that it needs.
            self.partitions.add((relation, step.partition))

    def has(self, layout: Layout, partition: int | None) -> bool:
        relation = layout.shape.oid
        return relation in self.relations or (relation, partition) in self.partitions

    def rows_outside(self, step: Rows) -> Rows:
        """The rows that stay."""
        shapes = tuple(shape for shape in step.shapes if not self.has(step.layout, shape.oid))
        return replace(step, shapes=shapes)

    def sweeps_outside(self, step: Swept) -> Swept | None:
        """The sweeps that may find something."""
        sweeps = tuple(s for s in step.sweeps if not self.has(step.layout, s.partition))
        return replace(step, sweeps=sweeps) if sweeps else None


def _patched(steps: Iterable[Step]) -> Iterator[int]:
    for step in steps:
        if isinstance(step, Rows) and step.traits.unsent:
            yield step.layout.shape.oid


def _joined(steps: Iterable[_Numbered]) -> list[_Numbered]:
    """Rows as one step, if all that stood between them is void."""
    joined: list[_Numbered] = []
    for number, step in steps:
        before, earlier = joined[-1] if joined else (number, None)
        if (
            before + 1 < number
            and isinstance(step, Rows)
            and isinstance(earlier, Rows)
            and (step.layout, step.shapes) == (earlier.layout, earlier.shapes)
        ):
            joined[-1] = (number, replace(step, low=earlier.low))
        else:
            joined.append((number, step))
    return joined
