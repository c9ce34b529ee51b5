"""The last state of each key in a batch, as texts, for the stages of a Postgres target.

Keys are compared as the texts that Postgres prints. Two texts of one value (1.0 and 1.00) are two
keys here: what becomes of that is seen when the rows are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.shape import Shape
from pgtide.spark.codecs import TEXT, Codec
from pgtide.spark.compaction import Traits, fill, key_names
from pgtide.spark.layout import Layout
from pgtide.spark.sql_text import Sql, case, element

STATE = ("segment", "stage", "op", "values", "lsn", "seq", "known", "copies", "unsent", "origin")

Keys: TypeAlias = Sequence[tuple[Sequence[Shape], Sequence[str]]]
"""Of each table, its shapes and the names of its key columns."""

_AT = "struct(lsn, seq, part)"
_KNOWN = "CASE op WHEN 'insert' THEN 'a' WHEN 'read' THEN 'r' ELSE 'p' END"
_NOTHING = (
    "CAST(NULL AS int) AS copies",
    "CAST(NULL AS array<int>) AS unsent",
    "CAST(NULL AS array<string>) AS origin",
)
_PASSING = "NOT (op = 'delete' AND known = 'a')"  # what came and went again leaves no trace


@dataclass(frozen=True)
class TextLayout(Layout):
    """A layout whose keys are texts."""

    @cached_property
    def codecs(self) -> tuple[Codec, ...]:
        return tuple(TEXT for _ in self.columns)

    @classmethod
    def like(cls, layout: Layout) -> TextLayout:
        return cls(layout.shape, layout.key_names)


def each(events: DataFrame) -> DataFrame:
    """Rows that were inserted or read, no two of one key."""
    known = f"{_KNOWN} AS known"
    return events.selectExpr(
        "segment", "shape AS stage", "op", "after AS values", "lsn", "seq", known, *_NOTHING
    )


def compacted(events: DataFrame, tables: Keys, *, moves: bool) -> DataFrame:
    """The last event of each key of several tables, which have sent all of their values."""
    new, old = _key("coalesce(after, before)", tables), _key("before", tables)
    where = [f"{_owner(tables)} AS owner", "segment", "shape", "lsn", "seq"]
    if moves:
        moved = f"(op = 'update' AND before IS NOT NULL AND NOT {old} <=> {new})"
        gone = f"struct('delete' AS op, before AS row, {old} AS key, 'p' AS known, 0 AS part)"
        known = case(moved, "'a'", _KNOWN)
        here = (
            f"struct(op, coalesce(after, before) AS row, {new} AS key, {known} AS known, 1 AS part)"
        )
        halves = case(moved, f"array({gone}, {here})", f"array({here})")
        exploded = events.selectExpr(*where, f"explode({halves}) AS e")
        events = exploded.select("owner", "segment", "shape", "lsn", "seq", "e.*")
    else:
        row = "coalesce(after, before) AS row"
        events = events.selectExpr(
            *where, "op", row, f"{new} AS key", f"{_KNOWN} AS known", "1 AS part"
        )
    newest = f"max_by(struct(shape, op, row, lsn, seq), {_AT}) AS newest"
    first = f"min_by(known, {_AT}) AS known"
    grouped = events.groupBy("segment", "owner", "key").agg(F.expr(newest), F.expr(first))
    state = grouped.select("segment", "newest.*", "known").selectExpr(
        "segment", "shape AS stage", "op", "row AS values", "lsn", "seq", "known", *_NOTHING
    )
    return state.filter(_PASSING)


def filled(events: DataFrame, layout: Layout, traits: Traits, segments: int) -> DataFrame:
    """The same for one table, of which some values may not have been sent."""
    parts = [
        _segment(events.filter(F.col("segment") == number), layout, traits, number)
        for number in range(segments)
    ]
    return reduce(DataFrame.unionAll, parts).filter(_PASSING)


def _segment(events: DataFrame, layout: Layout, traits: Traits, number: int) -> DataFrame:
    keys = key_names(layout)
    arrived = F.when(_moved(layout), F.lit("a")).otherwise(F.expr(_KNOWN))
    keyed = fill(events, layout, traits).withColumn("known", arrived)
    row = "struct(op, before, after, unchanged, lsn, seq, origin)"
    newest, first = f"max_by({row}, {_AT}) AS newest", f"min_by(known, {_AT}) AS known"
    grouped = keyed.groupBy(*keys).agg(F.expr(newest), F.expr(first))
    origin = "CAST(NULL AS array<string>)"
    if traits.unsent and traits.old_rows:
        origin = f"array({', '.join(f'origin.{key}' for key in keys)})"
    return grouped.select("newest.*", "known").selectExpr(
        f"{number} AS segment",
        "op",
        "CASE WHEN op = 'delete' THEN before ELSE after END AS values",
        "lsn",
        "seq",
        "known",
        "CAST(NULL AS int) AS copies",
        "unchanged AS unsent",
        f"{origin} AS origin",
    )


def every(events: DataFrame, layout: Layout) -> DataFrame:
    """Every event of one table in its place, with the key that the row had before it.

    Of rows without a key an update is two: one row fewer, then one more.
    """
    new, old = "coalesce(after, before)", "coalesce(before, after)"
    columns = ["segment", "op", f"{new} AS values", "lsn", "seq", f"{_KNOWN} AS known"]
    if layout.key_names:
        origin = f"{_array(layout.keys, old)} AS origin"
        return events.selectExpr(*columns, _NOTHING[0], "unchanged AS unsent", origin)
    gone = "struct('delete' AS op, before AS values, -1 AS copies)"
    come = "struct('insert' AS op, after AS values, 1 AS copies)"
    rows = events.selectExpr("segment", "lsn", "seq", f"explode(array({gone}, {come})) AS e")
    rows = rows.select("segment", "lsn", "seq", "e.*").filter("values IS NOT NULL")
    return rows.selectExpr(
        "segment", "op", "values", "lsn", "seq", "'r' AS known", "copies", *_NOTHING[1:]
    )


def _moved(layout: Layout) -> Column:
    """Whether an update came from another key, be all of its values known."""
    old, new = (_array(layout.keys, side) for side in ("before", "after"))
    return F.expr(f"(before IS NOT NULL AND after IS NOT NULL AND NOT {old} <=> {new})")


def _key(row: str, tables: Keys) -> Sql:
    """The texts of the key, whichever table a row is of."""
    by_places: dict[tuple[int, ...], list[int]] = {}
    for shapes, key in tables:
        for shape in shapes:
            names = [column.name for column in shape.columns]
            by_places.setdefault(tuple(names.index(name) for name in key), []).append(shape.id)
    if len(by_places) == 1:
        return _array(next(iter(by_places)), row)
    whens = [
        f"WHEN shape IN ({', '.join(map(str, ids))}) THEN {_array(places, row)}"
        for places, ids in by_places.items()
    ]
    return Sql(f"CASE {' '.join(whens)} END")


def _array(places: Sequence[int], row: str) -> Sql:
    return Sql(f"array({', '.join(element(row, place) for place in places)})")


def _owner(tables: Keys) -> str:
    """One number for all shapes of a table: a row may move from partition to partition."""
    whens = [
        f"WHEN shape IN ({', '.join(str(shape.id) for shape in shapes)}) THEN {number}"
        for number, (shapes, _) in enumerate(tables)
    ]
    return f"CASE {' '.join(whens)} END"
