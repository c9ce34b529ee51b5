"""The moment of a target that is a Postgres database: a snapshot, and how far it was.

The pipeline writes its progress in the transaction that writes the rows, so a snapshot that sees
the one sees the other: the position is exact. Tables are locked before as at the source, and
whoever waits for one, such as the pipeline with a TRUNCATE, is not kept waiting for long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import psycopg

from pgtide.position import Position
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import connect
from pgtide.shape import Shape
from pgtide.sinks.postgres.bookkeeping import target_position
from pgtide.spark.layout import TableName
from pgtide.verify.moment import EXPORT, NAME, Changed, LockedSnapshot
from pgtide.verify.relations import quoted_name


class TargetMoment(LockedSnapshot):
    """Holds a moment of the target; a table that is not there is none of ``layouts``."""

    def __init__(self, url: str, pipeline: str, tables: Sequence[TableName], sessions: int) -> None:
        super().__init__(url, {}, sessions)
        self._pipeline = pipeline
        self._tables = frozenset(tables)

    def __enter__(self) -> Self:
        self.layouts, self.position = self._attempts(self._take)
        return self

    def _take(self) -> tuple[dict[int, Shape], Position | None]:
        with connect(self._url, application_name=NAME) as probe:
            self._relations = self._members(read_layouts(probe))
        try:
            self._open()
        except psycopg.errors.UndefinedTable as exc:
            raise Changed from exc
        row = self.keeper.execute(EXPORT).fetchone()
        assert row is not None
        layouts = read_layouts(self.keeper)
        if self._members(layouts) != self._relations:
            raise Changed
        self._share(row[0])
        return layouts, target_position(self.keeper, self._pipeline)

    def _members(self, layouts: Mapping[int, Shape]) -> dict[int, str]:
        """The tables with their partitions, quoted."""
        roots = {s.oid for s in layouts.values() if (s.schema, s.table) in self._tables}
        wanted = (s for s in layouts.values() if s.oid in roots or s.root_oid in roots)
        return {shape.oid: quoted_name(shape) for shape in wanted}
