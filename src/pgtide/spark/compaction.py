"""Compaction: the events of one table in one batch become one row per key.

Input and output are rows of the log, values still as Postgres texts: what a later event
overwrites is never decoded. The result has, besides the log's columns, the typed key
(``k0``, ``k1``, …) and ``origin``: where the values named in ``unchanged`` are to be found.

* An update that did not send a value takes it from the event before it. What no event of
  the batch has sent stays in ``unchanged``; the target has it, under the key ``origin``, or
  under the row's own key when ``origin`` is NULL.
* A key change is a move: the old key is deleted, the new key gets the row, and values that
  were not sent come from the row as it was under the old key, wherever that one came from.
* A row deleted and inserted again starts anew: nothing of the old row reaches the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from pgtide.spark.keyed_events import is_move, last_of_each, parted
from pgtide.spark.layout import ROW_OPS, Layout
from pgtide.spark.sql_text import Sql, case, literal, type_name

EVENT_TYPES = {
    "op": "string",
    "before": "array<string>",
    "after": "array<string>",
    "unchanged": "array<int>",
    "lsn": "bigint",
    "seq": "bigint",
    "xid": "bigint",
    "committed_at": "timestamp_ltz",
    "shape": "bigint",
}
EVENT = tuple(EVENT_TYPES)
STARTS = ("insert", "read", "delete")


@dataclass(frozen=True)
class Traits:
    """What is known beforehand about the events, to leave out work that nothing needs."""

    old_rows: bool = True  # some update carries ``before``, so keys may change
    unsent: tuple[int, ...] = ()  # the columns that some event names in ``unchanged``
    updates: bool = True  # some event is an update
    deletes: bool = True  # some event is a delete
    reads: bool = True  # some event is a row that was read

    @property
    def removes(self) -> bool:
        """Whether some event takes a row away, if only to put another one in its place."""
        return self.updates or self.deletes

    def joined(self, other: Traits) -> Traits:
        """What is known about both together."""
        return Traits(
            self.old_rows or other.old_rows,
            tuple(sorted({*self.unsent, *other.unsent})),
            self.updates or other.updates,
            self.deletes or other.deletes,
            self.reads or other.reads,
        )


def compact(
    events: DataFrame, layout: Layout, traits: Traits, carried: Sequence[str] = EVENT
) -> DataFrame:
    """The last event of each key, with all values that the batch knows.

    Of the log's columns, those that are not ``carried`` are NULL in the result: sorting the
    events by key moves every byte of them.
    """
    filled = fill(events, layout, traits, carried)
    return last_of_each(filled, key_names(layout), (*EVENT, "origin"))


def fill(
    events: DataFrame, layout: Layout, traits: Traits, carried: Sequence[str] = EVENT
) -> DataFrame:
    """Every event by its typed key, a move as two, with all values that the batch knows."""
    if layout.shape.replica_identity == "f" and traits.unsent:
        events, traits = from_old_row(events, layout, traits.unsent), replace(traits, unsent=())
    keyed = _keyed(events, layout, moves=traits.old_rows, carried=carried)
    if not traits.unsent:
        return keyed
    return _Filling(layout, traits).run(keyed)


def key_names(layout: Layout) -> list[str]:
    """Names of the typed key columns."""
    return [f"k{index}" for index in range(len(layout.keys))]


def known_key(layout: Layout) -> Column:
    """Whether a row's key could be read: under ``null`` a value that no type holds is NULL."""
    return reduce(Column.__and__, [F.col(name).isNotNull() for name in key_names(layout)])


def from_old_row(events: DataFrame, layout: Layout, unsent_columns: Sequence[int]) -> DataFrame:
    """With REPLICA IDENTITY FULL the old row holds what the new one was not sent."""
    if not unsent_columns:
        return events
    values = [
        F.when(unsent(index), F.get("before", F.lit(index))).otherwise(F.get("after", F.lit(index)))
        if index in unsent_columns
        else F.get("after", F.lit(index))
        for index in range(len(layout.columns))
    ]
    filled = F.when(F.size("unchanged") > 0, F.array(*values)).otherwise(F.col("after"))
    return events.withColumns({"after": filled, "unchanged": F.lit(None).cast("array<int>")})


def _keyed(events: DataFrame, layout: Layout, *, moves: bool, carried: Sequence[str]) -> DataFrame:
    row_ops = ", ".join(map(literal, ROW_OPS))
    new, old = (_key(layout, row) for row in ("coalesce(after, before)", "before"))
    typed = events.filter(f"op IN ({row_ops})").selectExpr(*EVENT, f"{new} AS key")
    nowhere = f"CAST(NULL AS {_key_type(layout)})"
    if not moves:
        kept = {name: name if name in carried else _nothing(name) for name in EVENT}
        here = {**kept, "key": "key", "origin": nowhere}
        return _spread(parted(typed, here, {}, None))
    # Values, not texts: 1.0 and 1.00 are one key.
    moved = is_move(old, "key")
    here = {**{name: name for name in EVENT}, "key": "key", "origin": case(moved, old)}
    gone = {name: _nothing(name) for name in ("after", "unchanged")}
    left = {**gone, "op": "'delete'", "key": old, "origin": nowhere}
    return _spread(parted(typed, here, left, moved))


def _spread(keyed: DataFrame) -> DataFrame:
    return keyed.select(*EVENT, "key.*", "origin", "part")


def _key(layout: Layout, row: str) -> Sql:
    values = zip(key_names(layout), layout.key_values(row), strict=True)
    return Sql(f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in values)})")


def _key_type(layout: Layout) -> str:
    types = (type_name(layout.codecs[index].spark_type) for index in layout.keys)
    pairs = zip(key_names(layout), types, strict=True)
    return f"struct<{','.join(f'{name}:{kind}' for name, kind in pairs)}>"


def _nothing(name: str) -> str:
    return f"CAST(NULL AS {EVENT_TYPES[name]})"


class _Filling:
    """Values that were not sent, taken from earlier events."""

    def __init__(self, layout: Layout, traits: Traits) -> None:
        self._keys = key_names(layout)
        self._width = len(layout.columns)
        self._traits = traits

    def run(self, keyed: DataFrame) -> DataFrame:
        """Fill within each life of a key, then across moves."""
        filled = self._within_lives(keyed)
        if self._traits.old_rows:
            filled = self._across_moves(filled)
        origin = F.when(F.col("unchanged").isNotNull(), F.col("origin")).alias("origin")
        return filled.select(*EVENT, *self._keys, origin, "part")

    def _within_lives(self, keyed: DataFrame) -> DataFrame:
        """A life of a key begins where a row is inserted, arrives or is deleted."""
        starts = F.col("op").isin(*STARTS) | F.col("origin").isNotNull()
        lives = keyed.withColumn("life", F.sum(starts.cast("int")).over(_so_far(self._keys)))
        before = _so_far([*self._keys, "life"])
        known = {index: f"sent{index}" for index in self._traits.unsent}
        for index, name in known.items():
            value = F.struct(F.get("after", F.lit(index)).alias("v"))
            here = F.when(F.col("after").isNotNull() & ~unsent(index), value)
            lives = lives.withColumn(name, F.last(here, ignorenulls=True).over(before))
        moved = F.when(F.col("origin").isNotNull(), F.struct("lsn", "seq"))
        lives = lives.withColumn("moved_at", F.first(moved).over(before))
        lives = lives.withColumn("origin", F.first("origin").over(before))
        columns = {index: F.col(name) for index, name in known.items()}
        return self._with_values(lives, columns).drop("life", *known.values())

    def _with_values(self, frame: DataFrame, known: dict[int, Column]) -> DataFrame:
        """Put found values (structs, NULL where nothing was found) where one was not sent."""
        values = [
            F.when(unsent(index), known[index]["v"]).otherwise(F.get("after", F.lit(index)))
            if index in known
            else F.get("after", F.lit(index))
            for index in range(self._width)
        ]
        missing = [F.when(unsent(i) & value.isNull(), F.lit(i)) for i, value in known.items()]
        still = F.array_compact(F.array(*missing))
        present = F.col("after").isNotNull()
        return frame.withColumns(
            {
                "after": F.when(present, F.array(*values)),
                "unchanged": F.when(present & (F.size(still) > 0), still),
            }
        )

    def _across_moves(self, filled: DataFrame) -> DataFrame:
        """Follow each row that arrived with values missing to the key that it came from.

        One round per link of the longest chain of moves in the batch.
        """
        wanting = F.col("unchanged").isNotNull() & F.col("moved_at").isNotNull()
        found = filled.filter(~wanting)
        rows = filled.filter(wanting).localCheckpoint()
        while not rows.isEmpty():
            rows = self._one_link(rows, filled).localCheckpoint()
            found = found.union(rows.filter(~wanting))
            rows = rows.filter(wanting)
        return found

    def _one_link(self, rows: DataFrame, filled: DataFrame) -> DataFrame:
        """What the row was just before it moved, or, if no event says, where the target has it."""
        earlier = filled.filter("after IS NOT NULL").select(
            F.struct(*self._keys).alias("old_key"),
            F.struct("lsn", "seq").alias("at"),
            F.struct("after", "unchanged", "origin", "moved_at").alias("old"),
        )
        here = (F.col("origin") == F.col("old_key")) & (F.col("at") < F.col("moved_at"))
        identity = [*self._keys, "lsn", "seq", "part"]
        rest = [name for name in filled.columns if name not in identity]
        joined = (
            rows.join(earlier, here, "left")
            .groupBy(*identity)
            .agg(F.first(F.struct(*rest)).alias("row"), F.max_by("old", "at").alias("old"))
        )
        linked = joined.select(*identity, "row.*", "old").select(
            *identity, *(_linked(name) for name in rest), "old"
        )
        old = F.col("old")
        known = {
            index: F.when(
                old.isNotNull()
                & ~F.coalesce(F.array_contains(old["unchanged"], index), F.lit(False)),
                F.struct(F.get(old["after"], F.lit(index)).alias("v")),
            )
            for index in self._traits.unsent
        }
        return self._with_values(linked, known).select(*filled.columns)


def unsent(index: int) -> Column:
    """Whether the value of a column was not sent."""
    return F.expr(f"coalesce(array_contains(unchanged, {index}), false)")


def _linked(name: str) -> Column:
    """One step back along the chain: it ends where the row before has not moved itself."""
    old = F.col("old")
    if name == "moved_at":
        return old["moved_at"].alias(name)
    if name == "origin":
        return F.when(old["moved_at"].isNotNull(), old["origin"]).otherwise(F.col(name)).alias(name)
    return F.col(name)


def _so_far(partition: Sequence[str]) -> WindowSpec:
    ordered = Window.partitionBy(*partition).orderBy("lsn", "seq", "part")
    return ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
