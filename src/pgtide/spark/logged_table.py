"""A table of the log by its name: what it looks like now, and every shape its rows may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pgtide.config.patterns import split_name
from pgtide.errors import ConfigError
from pgtide.position import Lsn
from pgtide.shape import Shape
from pgtide.spark.layout import Layout, TableName

DROPPED = ""  # no column has this name


@dataclass(frozen=True)
class LoggedTable:
    """A table and every shape that its rows may have, partitions under the root's names of now."""

    layout: Layout
    shapes: tuple[Shape, ...]

    @classmethod
    def find(cls, name: str, shapes: Mapping[int, Shape], until: Lsn | None = None) -> LoggedTable:
        """The table that has this name, with what it was before, and dropped ones that had it.

        ``until``: the name that it had there, if not at the end of the log.
        """
        then = [s for s in shapes.values() if until is None or s.since <= until]
        wanted, called = _wanted(name), _names(then)
        holders = {relation for relation, now in called.items() if now == wanted}
        if not holders:
            was = [s.home for s in then if wanted in _both_names(s)]
            raise _unknown(name, [called[relation] for relation in was], until)
        layouts = {shape.id: Layout.of(shape, shapes) for shape in shapes.values()}
        relation = max((s for s in then if s.home in holders), key=lambda s: s.id).home
        newest = layouts[max(s.id for s in shapes.values() if s.home == relation)]
        chosen = [
            shape
            for shape in shapes.values()
            if relation in (shape.oid, shape.root_oid)
            or (shape.home in holders and layouts[shape.id].table == wanted)
        ]
        present = (_renamed(s, layouts[s.id].shape, newest.shape) for s in chosen)
        return cls(newest, tuple(present))

    @property
    def present(self) -> LoggedTable:
        """Only the relation that has the name now, with its partitions, whatever it was called."""
        relation = self.layout.shape.oid
        mine = (shape for shape in self.shapes if relation in (shape.oid, shape.root_oid))
        return replace(self, shapes=tuple(mine))

    def sized(self, unbounded_numeric: str) -> LoggedTable:
        """The table with the type that a setting gives to ``numeric`` without precision."""
        return replace(self, layout=self.layout.sized(unbounded_numeric))

    @property
    def name(self) -> str:
        return ".".join(self.layout.table)

    @property
    def ids(self) -> list[int]:
        return [shape.id for shape in self.shapes]

    @property
    def relations(self) -> list[int]:
        return sorted({shape.oid for shape in self.shapes})

    @property
    def names(self) -> frozenset[TableName]:
        """What the log's rows of this table are filed under."""
        return frozenset((shape.schema, shape.table) for shape in self.shapes)

    def owns(self, shape: Shape) -> bool:
        """Whether rows of a shape would belong to this table, had it been known."""
        relations, name = self.relations, self.layout.table
        # Dropped and created again, it is another relation under the same name.
        return (
            shape.oid in relations
            or shape.root_oid in relations
            or name in ((shape.schema, shape.table), (shape.root_schema, shape.root_table))
        )


def _wanted(name: str) -> TableName:
    parts = [part for part, _ in split_name(name)]
    return (parts[0], parts[1]) if len(parts) == 2 else ("public", parts[0])


def _both_names(shape: Shape) -> tuple[TableName, TableName]:
    return (shape.schema, shape.table), (shape.root_schema, shape.root_table)


def _names(shapes: Iterable[Shape]) -> dict[int, TableName]:
    """The last name of each relation; a root says it better than its partitions."""
    ordered = sorted(shapes, key=lambda shape: (not shape.root_oid, shape.id))
    return {shape.home: shape.home_name for shape in ordered}


def _unknown(name: str, called: list[TableName], until: Lsn | None) -> ConfigError:
    """The error for a name that no table has; ``called``: names of those that had it."""
    when = "now" if until is None else f"at {until}"
    if called:
        other = ".".join(called[-1])
        return ConfigError(
            f"{name} is called {other} {when}", hint=f"Ask for {other}: it has all of its changes."
        )
    if until is not None:
        return ConfigError(
            f"{name} did not exist at {until}, as far as the log knows",
            hint="Ask for a later moment, or without as_of.",
        )
    return ConfigError(f"the log knows no table {name}", hint="See which it knows: pgtide log show")


def _renamed(shape: Shape, root_then: Shape, root_now: Shape) -> Shape:
    """A partition's shape with the names that its root's columns have now.

    It numbers its columns by itself, so only by way of the root of then can they be told.
    """
    if shape.root_oid != root_now.oid or root_then.id == shape.id:
        return shape
    numbers = {column.name: column.attnum for column in root_then.columns}
    names = {column.attnum: column.name for column in root_now.columns}
    columns = tuple(
        replace(column, name=names.get(numbers[column.name], DROPPED)) for column in shape.columns
    )
    return replace(shape, columns=columns)
