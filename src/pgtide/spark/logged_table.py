"""A table of the log by its name: what it looks like now, and every shape its rows may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pgtide.config.patterns import split_name
from pgtide.errors import ConfigError
from pgtide.shape import Shape
from pgtide.spark.layout import Layout, TableName

DROPPED = ""  # no column has this name


@dataclass(frozen=True)
class LoggedTable:
    """A table and every shape that its rows may have, partitions under the root's names of now."""

    layout: Layout
    shapes: tuple[Shape, ...]

    @classmethod
    def find(cls, name: str, shapes: Mapping[int, Shape]) -> LoggedTable:
        """The table that has this name now, with what it was before, and others of this name."""
        parts = [part for part, _ in split_name(name)]
        wanted = (parts[0], parts[1]) if len(parts) == 2 else ("public", parts[0])
        layouts = {shape.id: Layout.of(shape, shapes) for shape in shapes.values()}
        named = [shape for shape in shapes.values() if layouts[shape.id].table == wanted]
        if not named:
            raise ConfigError(
                f"the log knows no table {name}",
                hint="See which it knows: pgtide log show",
            )
        newest = layouts[max(named, key=lambda shape: shape.id).id]
        relation = newest.shape.oid
        mine = [s for s in shapes.values() if relation in (s.oid, s.root_oid)]
        chosen = {shape.id: shape for shape in (*named, *mine)}
        present = (_renamed(s, layouts[s.id].shape, newest.shape) for s in chosen.values())
        return cls(newest, tuple(present))

    @property
    def present(self) -> LoggedTable:
        """Only the relation that has the name now, with its partitions, whatever it was called."""
        relation = self.layout.shape.oid
        mine = (shape for shape in self.shapes if relation in (shape.oid, shape.root_oid))
        return replace(self, shapes=tuple(mine))

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
