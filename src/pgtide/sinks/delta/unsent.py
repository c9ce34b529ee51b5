"""Values that no event of the batch carries: the mirror has them.

A MERGE keeps them where the row is, under its own key. A row that moved to another key has
left them under the old one, from where they are read. And a row that the mirror does not have
at all, because the log began after it was written, cannot be completed: never with an
invented NULL.
"""

from __future__ import annotations

from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.position import Lsn, Position
from pgtide.sinks.delta.columns import DELETED, LSN, SEQ
from pgtide.sinks.delta.merging import Merge
from pgtide.sinks.delta.mirror import GONE, ORIGIN, PATCH
from pgtide.sinks.delta.target import Target
from pgtide.spark.compaction import Traits
from pgtide.spark.sql_text import quoted

FOUND = "_pgtide_found"


class Completing:
    """The rows of a merge that lack values, and what the mirror says about them."""

    def __init__(self, target: Target, merge: Merge) -> None:
        self._target = target
        self._merge = merge
        self._unset = merge.unset()
        self._rows = merge.rows.persist(StorageLevel.MEMORY_AND_DISK)

    def needed(self) -> bool:
        """Whether any row lacks a value."""
        return not self._rows.filter(self._wanting()).isEmpty()

    def rows(self) -> DataFrame:
        """The rows, those that moved with the values that they left behind."""
        moved = F.col(ORIGIN).isNotNull() & self._wanting()
        stayed = self._rows.filter(~moved)
        there = self._target.frame().alias("t")
        origin = [
            F.col(f"s.{ORIGIN}.k{number}") == F.col(f"t.{quoted(key)}")
            for number, key in enumerate(self._merge.keys)
        ]
        joined = (
            self._rows.filter(moved).alias("s").join(there, reduce(Column.__and__, origin), "left")
        )
        found = F.col(f"t.{LSN}").isNotNull()
        return stayed.union(
            joined.select(*[self._completed(name, found) for name in self._rows.columns])
        )

    def _completed(self, name: str, found: Column) -> Column:
        flag = self._unset.get(name)
        if flag is not None:
            here = F.col(f"s.{flag}") & found
            value = F.when(here, F.col(f"t.{quoted(name)}")).otherwise(F.col(f"s.{quoted(name)}"))
            return value.alias(name)
        if name in self._unset.values():
            return (F.col(f"s.{name}") & ~found).alias(name)
        if name == PATCH:
            # The row was shown under its old key: what was not sent passes the filter still.
            # Rows from before soft_delete was set have no mark.
            deleted = F.coalesce(F.col(f"t.{DELETED}"), F.lit(False))
            shown = found & ~deleted if self._merge.soft_delete else found
            return (F.col(f"s.{PATCH}") & ~shown).alias(name)
        return F.col(f"s.{quoted(name)}").alias(name)

    def incomplete(self, rows: DataFrame) -> DataFrame:
        """Rows that the mirror would have to invent values for."""
        keys = [quoted(key) for key in self._merge.keys]
        new = F.col(GONE) | F.col(PATCH)
        wanting = rows.filter(self._wanting() & ~new)
        return wanting.join(self._target.frame().select(*keys), list(self._merge.keys), "left_anti")

    def _wanting(self) -> Column:
        return reduce(Column.__or__, [F.col(flag) for flag in self._unset.values()])

    def close(self) -> None:
        self._rows.unpersist()


def first_position(rows: DataFrame) -> Position | None:
    """The first position among some rows of a merge, None if there are none."""
    found = rows.select(F.min(F.struct(LSN, SEQ)).alias("at")).head()
    if found is None or found["at"] is None:
        return None
    return Position(Lsn(found["at"][LSN]), found["at"][SEQ])


def may_lack_values(traits: Traits, identity: str) -> bool:
    """Whether there can be such rows at all: a full old row holds everything."""
    return bool(traits.unsent) and identity != "f"
