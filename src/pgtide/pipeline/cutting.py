"""Row steps: the rows of a batch by table and layout, cut by what must come between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeAlias

from pgtide.errors import LogError
from pgtide.pipeline.steps import Rows, Step, Swept, position_of
from pgtide.position import Position
from pgtide.shape import Shape
from pgtide.spark.compaction import Traits
from pgtide.spark.identity import with_identity
from pgtide.spark.layout import ROW_OPS, Layout, TableName


@dataclass(frozen=True)
class Count:
    """Rows of one shape and operation."""

    shape: int | None
    op: str
    rows: int
    low: Position
    high: Position
    old_rows: bool
    unsent: tuple[int, ...]

    def joined(self, other: Count) -> Count:
        """Both together, of the same shape and operation."""
        return replace(
            self,
            rows=self.rows + other.rows,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            old_rows=self.old_rows or other.old_rows,
            unsent=tuple(sorted({*self.unsent, *other.unsent})),
        )


@dataclass(frozen=True)
class _Stretch:
    """Rows of one layout, before barriers cut them."""

    layout: Layout
    shapes: tuple[Shape, ...]
    low: Position
    high: Position
    rows: int
    traits: Traits
    changed: tuple[Shape, ...]  # of rows that were updated or deleted


def row_steps(
    counts: Iterable[Count], shapes: Mapping[int, Shape], barriers: Iterable[Step]
) -> Iterator[Rows]:
    """Rows of each table and layout, cut where barriers stand."""
    cuts: dict[TableName, set[_Cut]] = {}
    for step in barriers:
        cuts.setdefault(step.table, set()).update(_cuts(step))
    stretches = sorted(_stretches(counts, shapes), key=lambda s: (s.layout.table, s.low))
    for table, group in groupby(stretches, key=lambda s: s.layout.table):
        merged = list(_merged(list(group)))
        for earlier, later in pairwise(merged):
            if later.low <= earlier.high:
                raise LogError(
                    "rows of one table mix two layouts",
                    detail=f"{'.'.join(table)} has both between {later.low} and {earlier.high}.",
                    hint="Its partitions differ in their columns: make them equal.",
                )
        for stretch in merged:
            yield from _cut(table, stretch, sorted(cuts.get(table, ())))


def _stretches(counts: Iterable[Count], shapes: Mapping[int, Shape]) -> Iterator[_Stretch]:
    for count in counts:
        if count.op in ROW_OPS:
            assert count.shape is not None
            shape = shapes[count.shape]
            layout = Layout.of(shape, shapes)
            unsent = _in_layout(count.unsent, shape, layout)
            traits = Traits(
                count.old_rows,
                unsent,
                updates=count.op == "update",
                deletes=count.op == "delete",
                reads=count.op == "read",
            )
            changed = (shape,) if traits.removes else ()
            yield _Stretch(layout, (shape,), count.low, count.high, count.rows, traits, changed)


def _in_layout(indexes: Iterable[int], shape: Shape, layout: Layout) -> tuple[int, ...]:
    names = [column.name for column in layout.columns]
    return tuple(names.index(shape.columns[index].name) for index in indexes)


def _merged(stretches: list[_Stretch]) -> Iterator[_Stretch]:
    """Stretches of one table with those of one layout put together."""
    by_layout: dict[Layout, _Stretch] = {}
    for stretch in stretches:
        known = by_layout.get(stretch.layout)
        by_layout[stretch.layout] = stretch if known is None else _joined(known, stretch)
    return iter(sorted(map(_with_identity, by_layout.values()), key=lambda stretch: stretch.low))


def _with_identity(stretch: _Stretch) -> _Stretch:
    """What old rows hold is said by the partitions that they are of, not by the root."""
    if not any(shape.root_oid for shape in stretch.shapes):
        return stretch
    changed = stretch.changed or stretch.shapes
    return replace(stretch, layout=with_identity(stretch.layout, changed))


def _joined(one: _Stretch, other: _Stretch) -> _Stretch:
    return replace(
        one,
        shapes=tuple({shape.id: shape for shape in (*one.shapes, *other.shapes)}.values()),
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        rows=one.rows + other.rows,
        traits=one.traits.joined(other.traits),
        changed=(*one.changed, *other.changed),
    )


_Cut: TypeAlias = tuple[Position, Position]  # the last position before it, the first behind it


def _cuts(step: Step) -> list[_Cut]:
    """Where a step parts rows: around it, if it is a barrier."""
    around = (_before(position_of(step)), position_of(step).next)
    if not isinstance(step, Swept):
        return [around]
    if not step.cuts:
        return []
    # Equal rows would all get the newest position: those to be swept must not be among them.
    return [around, *((_before(s.older_than), s.older_than) for s in step.sweeps)]


def _cut(table: TableName, stretch: _Stretch, cuts: list[_Cut]) -> Iterator[Rows]:
    """One step per piece between barriers; a piece may turn out to be empty."""
    low = stretch.low
    for before, behind in cuts:
        if before < low:
            continue
        if stretch.high <= before:
            break
        yield _piece(table, stretch, low, before)
        low = behind
    if low <= stretch.high:
        yield _piece(table, stretch, low, stretch.high)


def _piece(table: TableName, stretch: _Stretch, low: Position, high: Position) -> Rows:
    return Rows(table, stretch.layout, stretch.shapes, low, high, stretch.rows, stretch.traits)


def _before(position: Position) -> Position:
    """The place just before; positions below the first of a transaction are of the one before."""
    return Position(position.lsn, position.seq - 1)
