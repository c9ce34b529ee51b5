"""Versions of rows, for ``scd2``: what events begin and what they end.

A version begins with the event that made it and ends with the next event of its key. Both
positions are kept beside the times, because times can be equal where positions are not. An
update makes a version also when it changed nothing: the source did make one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, TimestampType

from pgtide.errors import ConfigError, PipelineError
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.delta.columns import LSN, RELATION, SEQ, TargetColumn
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.compaction import Traits, fill, key_names, known_key
from pgtide.spark.layout import Layout, not_sent
from pgtide.spark.sql_text import quoted

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
END_LSN, END_SEQ = "_pgtide_end_lsn", "_pgtide_end_seq"
CLOSES = "_pgtide_closes"  # the row ends a version instead of being one

_OWN = (
    TargetColumn(VALID_FROM, TimestampType()),
    TargetColumn(VALID_TO, TimestampType()),
    TargetColumn(IS_CURRENT, BooleanType()),
    TargetColumn(LSN, LongType()),
    TargetColumn(SEQ, LongType()),
    TargetColumn(END_LSN, LongType()),
    TargetColumn(END_SEQ, LongType()),
    TargetColumn(RELATION, LongType()),
)
_THERE = "current"  # of a joined row: the version that the table has


@dataclass(frozen=True)
class VersionsPlan:
    """How events of one layout become versions."""

    layout: Layout
    rules: TableRules
    reader: CellReader
    relations: Mapping[int, int]  # of a partitioned table: relation by shape id, else empty

    def columns(self) -> list[TargetColumn]:
        """The columns of the table, pgtide's own last."""
        own = [column for column in _OWN if self.relations or column.name != RELATION]
        data = [TargetColumn(name, c.type, c.attnum) for name, c in self._named(self._cells())]
        return [*data, *own]

    def keys(self) -> list[str]:
        """Key columns of the table, in the order of the layout's key."""
        if not self.layout.keys:
            raise PipelineError(
                "a table without a key has no versions of rows",
                detail=f"{'.'.join(self.layout.table)} has no primary key and no identity index.",
                hint="Add a key, use mode: history, or leave the table out with tables.",
            )
        raw = self.reader.after()
        named = self._named(self.rules.apply(raw, F.col("op")))
        keys = []
        for source in (raw[index] for index in self.layout.keys):
            # The same expression: it was renamed at most.
            found = [name for name, cell in named if cell.value is source.value]
            if not found:
                raise ConfigError(
                    f"rules change the key column {source.name} of {'.'.join(self.layout.table)}",
                    detail="Versions are found by the key that a row has at the source.",
                    hint="Leave key columns as they are, or use mode: history.",
                )
            keys += found
        return keys

    def changes(self, events: DataFrame, traits: Traits, table: DataFrame) -> DataFrame:
        """New versions, and what ends those of the table: its columns and ``CLOSES``."""
        admitted = self.rules.admits(F.col("op"))
        events = events if admitted is None else events.filter(admitted)
        order = Window.partitionBy(*key_names(self.layout)).orderBy("lsn", "seq", "part")
        keyed = fill(events, self.layout, traits)
        if self.reader.policy == "null":
            # Rows whose keys no type holds are not one row; the quarantine has them.
            keyed = keyed.filter(known_key(self.layout))
        rows = keyed.withColumns(
            {
                "after": F.coalesce("after", "before"),
                "next": F.lead(F.struct("lsn", "seq", "committed_at")).over(order),
                "first": F.row_number().over(order) == 1,
            }
        )
        cells = self._named(self._cells(traits.unsent))
        partly = [name for name, cell in cells if cell.sent is not None]
        rows = rows.join(*self._current(table, partly), "left") if partly else rows
        values = {name: self._value(name, cell) for name, cell in cells}
        version = _struct(self.columns(), {**values, **self._begun()}, closes=False)
        end = _struct(self.columns(), self._ended(), closes=True)
        both = F.array(
            F.when(self._begins(traits, bool(partly)), version), F.when(F.col("first"), end)
        )
        return rows.select(F.explode(F.array_compact(both)).alias("row")).select("row.*")

    def _cells(self, unsent: tuple[int, ...] = ()) -> list[Cell]:
        return self.rules.apply(self.reader.after(unsent), F.col("op"))

    def _named(self, cells: list[Cell]) -> list[tuple[str, Cell]]:
        names = target_names(cells, [column.name for column in _OWN])
        return list(zip(names, cells, strict=True))

    def _current(self, table: DataFrame, columns: list[str]) -> tuple[DataFrame, Column]:
        """The table's current versions, and the condition under which one is a row's own."""
        keys = self.keys()
        there = F.struct(F.lit(True).alias(IS_CURRENT), *map(quoted, columns)).alias(_THERE)
        old = [F.col(quoted(key)).alias(f"c{at}") for at, key in enumerate(keys)]
        condition = F.lit(True)
        for at, key in enumerate(key_names(self.layout)):
            condition &= F.col(f"c{at}") == F.coalesce(F.col("origin")[key], F.col(key))
        return table.filter(IS_CURRENT).select(*old, there), condition

    def _value(self, name: str, cell: Cell) -> Column:
        if name in self.keys():
            return F.col(key_names(self.layout)[self.keys().index(name)])
        if cell.sent is None:
            return cell.value
        there = F.col(_THERE)
        value = F.when(cell.sent, cell.value).when(there.isNotNull(), there[name])
        if self.reader.policy == "null":
            return value
        # No version is current to take it from: NULL would be an invented value.
        refusal = F.expr(not_sent(".".join(self.layout.table)))
        return value.when(F.col("op") == "update", refusal)

    def _begins(self, traits: Traits, joined: bool) -> Column:
        """Whether an event begins a version: there is a row after it, which the filters keep.

        Where they hinge on a value that was not sent, what they said of the row before holds.
        """
        alive = F.col("op") != "delete"
        keep = self.rules.keep(self.reader.after(traits.unsent), F.col("op"))
        if keep is None:
            return alive
        before = F.col(_THERE).isNotNull() if joined else F.lit(False)
        return alive & F.coalesce(keep, before)

    def _begun(self) -> dict[str, Column]:
        following = F.col("next")
        pairs = [F.lit(number) for pair in self.relations.items() for number in pair]
        return {
            VALID_FROM: F.col("committed_at"),
            VALID_TO: following["committed_at"],
            IS_CURRENT: following.isNull(),
            LSN: F.col("lsn"),
            SEQ: F.col("seq"),
            END_LSN: following["lsn"],
            END_SEQ: following["seq"],
            RELATION: F.create_map(*pairs)[F.col("shape")] if pairs else F.lit(None),
        }

    def _ended(self) -> dict[str, Column]:
        """The end of the version that a key has: the key, time and position."""
        keys = zip(self.keys(), key_names(self.layout), strict=True)
        return {
            **{name: F.col(key) for name, key in keys},
            VALID_TO: F.col("committed_at"),
            LSN: F.col("lsn"),
            SEQ: F.col("seq"),
        }


def _struct(columns: list[TargetColumn], values: Mapping[str, Column], *, closes: bool) -> Column:
    """A row of the table; what has no value is NULL."""
    fields = [
        values.get(column.name, F.lit(None)).cast(column.type).alias(column.name)
        for column in columns
    ]
    return F.struct(*fields, F.lit(closes).alias(CLOSES))
