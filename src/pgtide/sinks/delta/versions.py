"""Versions of rows, for ``scd2``: what events begin and what they end.

A version begins with the event that made it and ends with the next event of its key. Both
positions are kept beside the times, because times can be equal where positions are not. An
update makes a version also when it changed nothing: the source did make one. A row that was
read makes one only if it differs; else the version it is equal to remembers where it was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, TimestampType

from pgtide.errors import ConfigError, PipelineError
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.delta.columns import LSN, RELATION, SEQ, TargetColumn
from pgtide.sinks.delta.confirming import ROW, with_confirmed, with_following
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.compaction import Traits, fill, key_names, known_key
from pgtide.spark.layout import Layout, not_sent
from pgtide.spark.sql_text import quoted

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
END_LSN, END_SEQ = "_pgtide_end_lsn", "_pgtide_end_seq"
SEEN_LSN, SEEN_SEQ = "_pgtide_seen_lsn", "_pgtide_seen_seq"
CLOSES = "_pgtide_closes"  # the row ends a version, or says it was seen, instead of being one

_OWN = (
    TargetColumn(VALID_FROM, TimestampType()),
    TargetColumn(VALID_TO, TimestampType()),
    TargetColumn(IS_CURRENT, BooleanType()),
    TargetColumn(LSN, LongType()),
    TargetColumn(SEQ, LongType()),
    TargetColumn(END_LSN, LongType()),
    TargetColumn(END_SEQ, LongType()),
    TargetColumn(SEEN_LSN, LongType()),
    TargetColumn(SEEN_SEQ, LongType()),
    TargetColumn(RELATION, LongType()),
)
THERE = "current"  # of a joined row: the version that the table has


@dataclass(frozen=True)
class VersionsPlan:
    """How events of one layout become versions."""

    layout: Layout
    rules: TableRules
    reader: CellReader
    relations: Mapping[int, int]  # of a partitioned table: relation by shape id, else empty
    lenient: bool = False  # pass over events of rows that nobody has seen whole as yet

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
        """New versions, and what happens to those of the table: its columns and ``CLOSES``."""
        rows, cells = self._beside_current(events, traits, table)
        values = {name: self._value(name, cell) for name, cell in cells}
        if traits.reads:
            rows = with_confirmed(rows, key_names(self.layout), values, THERE)
            values = {name: F.col(ROW)[f"v{number}"] for number, name in enumerate(values)}
        else:
            rows = with_following(rows, key_names(self.layout))
        version = _struct(self.columns(), {**values, **self._begun()}, closes=False)
        end = _struct(self.columns(), self._ended(), closes=True)
        parts = [F.when(F.col("begins") & ~F.col("confirms"), version), F.when(F.col("first"), end)]
        if traits.reads:
            seen = _struct(self.columns(), self._seen(), closes=True)
            parts.append(F.when(F.col("confirms") & F.col("next").isNull(), seen))
        both = F.array_compact(F.array(*parts))
        return rows.select(F.explode(both).alias("row")).select("row.*")

    def passed_over(self, events: DataFrame, traits: Traits, table: DataFrame) -> int:
        """How many events begin no version because a value is nowhere to be found."""
        rows, cells = self._beside_current(events, traits, table)
        return rows.filter(self._lacking([cell for _, cell in cells])).count()

    def _beside_current(
        self, events: DataFrame, traits: Traits, table: DataFrame
    ) -> tuple[DataFrame, list[tuple[str, Cell]]]:
        """Events by key, with the version that the table has where that is asked for."""
        admitted = self.rules.admits(F.col("op"))
        events = events if admitted is None else events.filter(admitted)
        keyed = fill(events, self.layout, traits)
        if self.reader.policy == "null":
            # Rows whose keys no type holds are not one row; the quarantine has them.
            keyed = keyed.filter(known_key(self.layout))
        rows = keyed.withColumn("after", F.coalesce("after", "before"))
        cells = self._named(self._cells(traits.unsent))
        wanted = [name for name, cell in cells if cell.sent is not None or traits.reads]
        rows = rows.join(*self._current(table, wanted), "left") if wanted else rows
        begins = self._begins(traits, [cell for _, cell in cells], bool(wanted))
        return rows.withColumn("begins", begins), cells

    def _cells(self, unsent: tuple[int, ...] = ()) -> list[Cell]:
        return self.rules.apply(self.reader.after(unsent), F.col("op"))

    def _named(self, cells: list[Cell]) -> list[tuple[str, Cell]]:
        names = target_names(cells, [column.name for column in _OWN])
        return list(zip(names, cells, strict=True))

    def _current(self, table: DataFrame, columns: list[str]) -> tuple[DataFrame, Column]:
        """The table's current versions, and the condition under which one is a row's own."""
        keys = self.keys()
        there = F.struct(F.lit(True).alias(IS_CURRENT), *map(quoted, columns)).alias(THERE)
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
        there = F.col(THERE)
        value = F.when(cell.sent, cell.value).when(there.isNotNull(), there[name])
        if self.reader.policy == "null" or self.lenient:
            return value
        # No version is current to take it from: NULL would be an invented value.
        refusal = F.expr(not_sent(".".join(self.layout.table)))
        return value.when(F.col("op") == "update", refusal)

    def _begins(self, traits: Traits, cells: list[Cell], joined: bool) -> Column:
        """Whether there is a row after an event, which the filters keep and which is whole.

        Where they hinge on a value that was not sent, what they said of the row before holds.
        """
        alive = F.col("op") != "delete"
        if self.lenient:
            alive &= ~self._lacking(cells)
        keep = self.rules.keep(self.reader.after(traits.unsent), F.col("op"))
        if keep is None:
            return alive
        before = F.col(THERE).isNotNull() if joined else F.lit(False)
        return alive & F.coalesce(keep, before)

    def _lacking(self, cells: list[Cell]) -> Column:
        """Whether a value was not sent, and no version is there to take it from."""
        unsent = [~cell.sent for cell in cells if cell.sent is not None]
        if not unsent:
            return F.lit(False)
        absent = (F.col("op") == "update") & F.col(THERE).isNull()
        return absent & F.coalesce(reduce(Column.__or__, unsent), F.lit(False))

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
            SEEN_LSN: F.col("seen")["lsn"],
            SEEN_SEQ: F.col("seen")["seq"],
            RELATION: F.create_map(*pairs)[F.col("shape")] if pairs else F.lit(None),
        }

    def _ended(self) -> dict[str, Column]:
        """The end of the version that a key has, which may have been seen before that."""
        return {
            **self._keyed(),
            VALID_TO: F.col("committed_at"),
            IS_CURRENT: F.lit(False),
            END_LSN: F.col("lsn"),
            END_SEQ: F.col("seq"),
            SEEN_LSN: F.col("seen_before")["lsn"],
            SEEN_SEQ: F.col("seen_before")["seq"],
        }

    def _seen(self) -> dict[str, Column]:
        """The version that a key has goes on: it was read as it is."""
        at = {SEEN_LSN: F.col("seen")["lsn"], SEEN_SEQ: F.col("seen")["seq"]}
        return {**self._keyed(), IS_CURRENT: F.lit(True), **at}

    def _keyed(self) -> dict[str, Column]:
        keys = zip(self.keys(), key_names(self.layout), strict=True)
        at = {LSN: F.col("lsn"), SEQ: F.col("seq")}
        return {**{name: F.col(key) for name, key in keys}, **at}


def _struct(columns: list[TargetColumn], values: Mapping[str, Column], *, closes: bool) -> Column:
    """A row of the table; what has no value is NULL."""
    fields = [
        values.get(column.name, F.lit(None)).cast(column.type).alias(column.name)
        for column in columns
    ]
    return F.struct(*fields, F.lit(closes).alias(CLOSES))
