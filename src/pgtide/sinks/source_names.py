"""The names that tables have had at the source, as shapes of the log tell, and where they go."""

from __future__ import annotations

from collections.abc import Iterable

from pgtide.pipeline.batch import Batch
from pgtide.shape import Shape
from pgtide.sinks.sharing import shared
from pgtide.spark.layout import TableName


class SourceNames:
    """What tables were and are called, in a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def target(self, table: TableName) -> TableName:
        """The name in the target."""
        return self._batch.rules(table).target

    def of(self, relation: int) -> set[TableName]:
        """The names that a relation has had."""
        return {(s.schema, s.table) for s in self._shapes if s.oid == relation}

    def ever(self, tables: Iterable[TableName]) -> set[TableName]:
        """The names that tables have had or will have: one that comes again has the last."""
        names = {*tables}
        relations = {s.oid for s in self._shapes if (s.schema, s.table) in names}
        return names | {(s.schema, s.table) for s in self._shapes if s.oid in relations}

    def targets_from(self, shape: Shape) -> set[TableName]:
        """The names in the target that a relation has while it has a shape, and later."""
        shapes = [s for s in self._shapes if s.oid == shape.oid and s.id >= shape.id]
        return {self.target((s.schema, s.table)) for s in (shape, *shapes)}

    def refuse_routes(self, table: TableName, place: str, relation: int) -> None:
        """Refuse to share a relation's place in the target with a table that never had its name."""
        names = self.of(relation)
        if names and table not in names:
            raise shared([".".join(max(names)), ".".join(table)], place)

    def refuse_shared(self, table: TableName, place: str, relation: int) -> None:
        """Two tables of the source in one of the target would replace each other for ever."""
        newest = self._newest(relation)
        if newest is not None and newest != table:
            raise shared([".".join(newest), ".".join(table)], place)

    def refuse_both(self, table: TableName, relation: int) -> None:
        """The same where a relation that has moved on may be found at its old place still."""
        place, newest = self.target(table), self._newest(relation)
        if newest is not None and self.target(newest) == place:
            self.refuse_shared(table, ".".join(place), relation)

    def _newest(self, relation: int) -> TableName | None:
        """The last name of a relation; None of a partition, whose rows go to its root."""
        shapes = [shape for shape in self._shapes if shape.oid == relation]
        newest = max(shapes, key=lambda shape: shape.id, default=None)
        return None if newest is None or newest.root_oid else (newest.schema, newest.table)

    @property
    def _shapes(self) -> Iterable[Shape]:
        return self._batch.shapes.values()
