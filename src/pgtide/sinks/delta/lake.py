"""The tables of a lake by name and by the relation that they mirror.

A table knows its relation by a property, so that after a crash in the middle of a rename
its rows are found under the old name or the new one, wherever it had got to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote

from pyspark.sql import SparkSession

from pgtide.config.sinks import DeltaSettings
from pgtide.errors import TargetError
from pgtide.log.source import LogSource
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.sinks.delta.gone import Gone
from pgtide.sinks.delta.moving import move, name_taken, remove
from pgtide.sinks.delta.target import (
    RELATION_PROPERTY,
    RENAMED_AT_PROPERTY,
    SHAPED_AT_PROPERTY,
    SOURCE_PROPERTY,
    Target,
)
from pgtide.sinks.directories import table_path
from pgtide.spark.layout import TableName


def source_text(source: LogSource) -> str:
    """A source as a property of tables: ``system identifier/database/slot``, as in a URL."""
    return "/".join(quote(part, safe="") for part in source.identity.values())


def name_aside(name: TableName, relation: int) -> TableName:
    """What a relation's table is called once another one has taken its name."""
    schema, table = name
    return schema, f"{table}__{relation}"


def is_later(properties: Mapping[str, str], at: Position) -> bool:
    """Whether a table got its name, or the columns that it has, behind a position."""
    marks = (SHAPED_AT_PROPERTY, RENAMED_AT_PROPERTY)
    return any(at < Position.parse(properties[mark]) for mark in marks if mark in properties)


class Lake:
    """The tables that one writer works on."""

    def __init__(self, spark: SparkSession, settings: DeltaSettings, source: LogSource) -> None:
        self._spark = spark
        self._settings = settings
        self._storage = Storage(settings.path, dict(settings.storage))
        self.source = source_text(source)
        self._gone = Gone(self._storage, self.source)
        self._places: dict[int, TableName] = {}

    def look(self, names: Iterable[TableName]) -> dict[int, TableName]:
        """Which relation's table is under which of these names.

        Some may be tables of other writers, who may move them: nobody may have begun to write.
        """
        places = {}
        for name in sorted(names):
            properties = self._properties(name)
            if RELATION_PROPERTY not in properties:
                continue
            places[int(properties[RELATION_PROPERTY])] = name
            if SOURCE_PROPERTY not in properties:  # of a lake from before tables said it
                self._by_name(name).set_properties({SOURCE_PROPERTY: self.source})
        return places

    def know(self, places: Mapping[int, TableName]) -> None:
        """Take what was found for where relations are."""
        self._places.update(places)

    def place(self, relation: int) -> TableName | None:
        """The name under which a relation's rows are."""
        return self._places.get(relation)

    def target(self, name: TableName, relation: int) -> Target:
        """Where a relation's rows are, or will be."""
        return self._by_name(self._places.get(relation, name))

    def placed(self, relation: int, name: TableName) -> None:
        """Remember where a relation's table was made."""
        self._places[relation] = name

    def _by_name(self, name: TableName) -> Target:
        return Target.of(self._spark, self._settings.path, name, self._settings.storage)

    def set_aside(self, name: TableName, relation: int) -> None:
        """Give way to another table of this name: the old one gets its relation id as a suffix."""
        self._move(relation, name_aside(name, relation))

    def rename(self, relation: int, to: TableName, at: Position) -> None:
        """Give a table its new name, unless it has got that or a later one before."""
        name = self._places.get(relation)
        if name is None:
            return  # nothing was written yet
        table = self._by_name(name)
        renamed_at = table.properties().get(RENAMED_AT_PROPERTY)
        if renamed_at is None or Position.parse(renamed_at) <= at:
            holder = self.holder(to)
            if holder not in (None, relation):
                # One of the two was dropped: the name is the later one's.
                if is_later(self._properties(to), at):
                    to = name_aside(to, relation)
                else:
                    self.set_aside(to, holder)
            # First the mark: whoever finds it under its new name sees since when it has that.
            table.set_properties({RENAMED_AT_PROPERTY: str(at)})
            self._move(relation, to)

    def follow(self, relation: int, to: TableName, at: Position) -> None:
        """Rename a table of whose rename nobody told, unless the name is taken."""
        if self.holder(to) is None:
            self.rename(relation, to, at)

    def holder(self, name: TableName) -> int | None:
        """The relation whose table has this name in the lake."""
        found = self._properties(name).get(RELATION_PROPERTY)
        return None if found is None else int(found)

    def _properties(self, name: TableName) -> dict[str, str]:
        """What a table of the lake says of itself; one of another log is refused."""
        target = self._by_name(name)
        properties = target.properties()
        if properties.get(SOURCE_PROPERTY, self.source) != self.source:
            raise TargetError(
                "a table of the lake is of another log",
                detail=f"{target.path} was written from another source, database or slot; "
                "positions there mean something else.",
                hint="Name another path in the pipeline's sink, or move that table away.",
            )
        return properties

    def _move(self, relation: int, to: TableName) -> None:
        name = self._places[relation]
        place, wanted = self._by_name(name), self._by_name(to)
        if place.path == wanted.path:
            return
        if wanted.exists():
            raise name_taken(place.path, wanted.path)
        move(self._spark, self._storage, table_path(name), table_path(to))
        self._places[relation] = to

    def drop(self, relation: int, at: Position) -> None:
        """Delete a table with its files, unless it is of a later relation with the same id."""
        name = self._places.get(relation)
        if name is None or is_later(self._properties(name), at):
            return
        self._gone.note(relation, at)
        remove(self._spark, self._storage, table_path(name))
        del self._places[relation]

    def replaced(self, relation: int, at: Position) -> None:
        """Note that another table takes the place of a dropped one, rows and all."""
        self._gone.note(relation, at)
        self._places.pop(relation, None)

    def is_gone(self, relation: int, at: Position) -> bool:
        """Whether a relation's table was deleted or replaced, and the position is before that."""
        gone_at = self._gone.since(relation)
        return gone_at is not None and at < gone_at
