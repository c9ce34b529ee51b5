"""Steps for tables that events are appended to: a TRUNCATE is one of them, a sweep is none.

So what the steps of a batch keep apart for their sake is one step again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Rows, Step, Swept, Truncated
from pgtide.shape import Shape
from pgtide.spark.compaction import Traits


def event_steps(batch: Batch, steps: Iterable[Step]) -> list[Step]:
    """The steps of some work, with rows and TRUNCATEs of one layout put together."""
    joined: list[Step] = []
    for step in steps:
        if isinstance(step, Swept):
            continue  # no change of the source, only of what a target should have had
        now = _as_rows(batch, step) if isinstance(step, Truncated) else step
        last = joined[-1] if joined else None
        if isinstance(now, Rows) and isinstance(last, Rows) and _alike(last, now):
            joined[-1] = _both(last, now)
        else:
            joined.append(now)
    return joined


def _as_rows(batch: Batch, step: Truncated) -> Rows:
    shapes = (_truncated_shape(batch, step),)
    traits = Traits(old_rows=False, updates=False, deletes=False, reads=False)
    return Rows(step.table, step.layout, shapes, step.at, step.at, 1, traits)


def _truncated_shape(batch: Batch, step: Truncated) -> Shape:
    """The shape that the TRUNCATE names, of a partition its own."""
    (shape,) = {
        mark.shape
        for mark in batch.census.marks
        if mark.op == "truncate" and mark.at == step.at and mark.shape is not None
    }
    return batch.shapes[shape]


def _alike(one: Rows, other: Rows) -> bool:
    """Whether both have the same columns and key; a TRUNCATE does not know what old rows hold."""
    layouts = (one.layout, other.layout)
    return len({(layout.shape.id, layout.key_names) for layout in layouts}) == 1


def _both(one: Rows, other: Rows) -> Rows:
    shapes: dict[int, Shape] = {shape.id: shape for shape in (*one.shapes, *other.shapes)}
    return replace(
        one,
        layout=(one if one.traits.removes else other).layout,
        shapes=tuple(shapes.values()),
        high=other.high,
        count=one.count + other.count,
        traits=one.traits.joined(other.traits),
    )
