"""Mirrors: lake tables that are equal to the tables of the source.

Each row carries the position of the event that made it what it is. A merge takes a row only
if its position is newer, so a batch that comes twice changes nothing, and an event that
comes late cannot undo a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, TimestampType

from pgtide.errors import TargetError
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.delta.columns import (
    COMMITTED_AT,
    DELETED,
    LSN,
    RELATION,
    SEQ,
    TargetColumn,
)
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.compaction import Traits, compact, key_names
from pgtide.spark.layout import Layout

GONE = "_pgtide_gone"  # the row is to leave the mirror: deleted, or out by a filter
ERASED = "_pgtide_erased"  # the row was deleted at the source: there are no values to store
PATCH = "_pgtide_patch"  # only to change a row that is there: a filter hinges on what was not sent
UNSET = "_pgtide_unset_"  # before a column's number: its value was not sent
ORIGIN = "_pgtide_origin"  # compaction's ``origin``, beside columns that may have that name

OWN = (LSN, SEQ, COMMITTED_AT, DELETED, RELATION)


@dataclass(frozen=True)
class MirrorPlan:
    """How rows of one layout become rows of a mirror."""

    layout: Layout
    rules: TableRules
    reader: CellReader
    committed_at: bool
    soft_delete: bool
    relations: Mapping[int, int]  # of a partitioned table: relation by shape id, else empty

    @cached_property
    def _named(self) -> list[tuple[str, Cell]]:
        """What rules leave of the row, by the names in the mirror."""
        cells = self._cells(())
        return list(zip(target_names(cells, OWN), cells, strict=True))

    def columns(self) -> list[TargetColumn]:
        """The columns of the mirror, pgtide's own last."""
        data = [TargetColumn(name, cell.type, cell.attnum) for name, cell in self._named]
        own = [TargetColumn(LSN, LongType()), TargetColumn(SEQ, LongType())]
        if self.committed_at:
            own.append(TargetColumn(COMMITTED_AT, TimestampType()))
        if self.soft_delete:
            own.append(TargetColumn(DELETED, BooleanType()))
        if self.relations:
            own.append(TargetColumn(RELATION, LongType()))
        return [*data, *own]

    def keys(self) -> dict[str, str]:
        """Key columns of the mirror, each with the name of its typed value in compaction."""
        found = {}
        sources = {column.name: column for column in self.layout.columns}
        for key, name in zip(self.layout.key_names, key_names(self.layout), strict=True):
            attnum = sources[key].attnum
            cell = next((pair for pair in self._named if _is(pair[1], attnum, key)), None)
            if cell is None or cell[1].type_oid == 0:
                raise TargetError(
                    "a mirror needs the key of its table as it is",
                    detail=f"Rules leave out or change column {key} of "
                    f"{'.'.join(self.layout.table)}.",
                    hint="Keep the key columns, or use mode: history.",
                )
            found[cell[0]] = name
        return found

    def state(self, events: DataFrame, traits: Traits) -> DataFrame:
        """One event per key, values still as text."""
        chosen = self._admitted(events)
        carried = ["op", "after", "lsn", "seq"]
        carried += ["unchanged"] if traits.unsent else []
        carried += ["committed_at"] if self.committed_at else []
        carried += ["shape"] if self.relations else []
        carried += ["before"] if self.reader.policy == "null" else []  # for the quarantine
        if not (traits.old_rows or traits.deletes):
            chosen = chosen.withColumn("before", F.lit(None).cast("array<string>"))
        return compact(chosen, self.layout, traits, carried)

    def unreadable_keys(self, events: DataFrame) -> DataFrame:
        """The events whose key its type cannot hold: no two of them are of one row."""
        keys = " OR ".join(f"{key} IS NULL" for key in self.layout.key_values("after"))
        return self._admitted(events).filter(f"after IS NOT NULL AND ({keys})")

    def _admitted(self, events: DataFrame) -> DataFrame:
        admitted = self.rules.admits(F.col("op"))
        return events if admitted is None else events.filter(admitted)

    def rows(self, state: DataFrame, traits: Traits) -> DataFrame:
        """The mirror's columns of each row, and what is to happen to it."""
        cells = self._cells(traits.unsent) if traits.unsent else [cell for _, cell in self._named]
        unset = [
            (~cell.sent & (F.col("op") != "delete")).alias(f"{UNSET}{number}")
            for number, cell in enumerate(cells)
            if cell.sent is not None
        ]
        gone, patch = self._fate(traits)
        fate = [gone.alias(GONE), _deleted().alias(ERASED), patch.alias(PATCH)]
        origin = F.col("origin").alias(ORIGIN)
        return self._select(state, cells, self.keys(), gone, *fate, *unset, origin)

    def project(self, events: DataFrame, *more: str) -> DataFrame:
        """The mirror's columns of rows that have no key, and some columns besides."""
        cells = [cell for _, cell in self._named]
        return self._select(events, cells, {}, F.lit(False), *map(F.col, more))

    def _select(
        self,
        frame: DataFrame,
        cells: list[Cell],
        keys: Mapping[str, str],
        gone: Column,
        *more: Column,
    ) -> DataFrame:
        names = target_names(cells, OWN)
        values = [
            F.col(keys[name]).alias(name) if name in keys else cell.value.alias(name)
            for name, cell in zip(names, cells, strict=True)
        ]
        return frame.select(*values, *self._own(gone), *more)

    def _cells(self, unsent: tuple[int, ...]) -> list[Cell]:
        return self.rules.apply(self.reader.after(unsent), F.col("op"))

    def _own(self, gone: Column) -> list[Column]:
        own = [F.col("lsn").alias(LSN), F.col("seq").alias(SEQ)]
        if self.committed_at:
            own.append(F.col("committed_at").alias(COMMITTED_AT))
        if self.soft_delete:
            own.append(gone.alias(DELETED))
        if self.relations:
            pairs = [F.lit(number) for pair in self.relations.items() for number in pair]
            own.append(F.create_map(*pairs)[F.col("shape")].cast("long").alias(RELATION))
        return own

    def _fate(self, traits: Traits) -> tuple[Column, Column]:
        """Whether the row goes, and whether it may only change one that is there.

        A row that does not pass the filter has no place in the mirror, whatever was there.
        """
        deleted = _deleted()
        keep = self.rules.keep(self.reader.after(traits.unsent), F.col("op"))
        if keep is None:
            return deleted, F.lit(False)
        return deleted | F.coalesce(~keep, F.lit(False)), ~deleted & keep.isNull()


def _deleted() -> Column:
    return F.col("op") == "delete"


def _is(cell: Cell, attnum: int | None, name: str) -> bool:
    return cell.attnum == attnum if attnum is not None else cell.name == name


def newer(target: str, source: str) -> str:
    """SQL: the source's row is of a later event than the target's."""
    return (
        f"({target}.{LSN} < {source}.{LSN} OR "
        f"({target}.{LSN} = {source}.{LSN} AND {target}.{SEQ} < {source}.{SEQ}))"
    )
