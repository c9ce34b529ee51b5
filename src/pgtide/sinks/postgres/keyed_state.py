"""The last state of each key in a batch, as texts, for the stages of a Postgres target.

Keys are compared as the texts that Postgres prints. Two texts of one value (1.0 and 1.00) are two
keys here: what becomes of that is seen when the rows are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.shape import Shape
from pgtide.spark.alignment import of_shapes
from pgtide.spark.codecs import TEXT, Codec
from pgtide.spark.compaction import Traits, fill, key_names
from pgtide.spark.keyed_events import is_move, last_of_each, parted
from pgtide.spark.layout import Layout
from pgtide.spark.sql_text import Sql, case, element, literal, pattern

STATE = ("segment", "stage", "op", "text", "lsn", "seq", "known", "copies", "unsent", "origin")
"""What is staged of a row: ``text`` are its values as COPY reads them."""

Keys: TypeAlias = Sequence[tuple[Sequence[Shape], Sequence[str]]]
"""Of each table, its shapes and the names of its key columns."""

_Given = TypeVar("_Given", bound=Hashable)

TAB, END = "char(9)", "char(10)"
NULL = literal(r"\N")
_SPECIAL = pattern(r"[\\\t\n\r]")  # what COPY would not take as it is
_ESCAPES = (("char(92)", r"\\"), (TAB, r"\t"), (END, r"\n"), ("char(13)", r"\r"))

_SEGMENT = -1  # in place of a column's number
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
    row = ["segment", "shape AS stage", "op", f"{copy_text('after')} AS text", "lsn", "seq"]
    return events.selectExpr(*row, f"{_KNOWN} AS known", *_NOTHING)


def compacted(events: DataFrame, tables: Keys, *, moves: bool) -> DataFrame:
    """The last event of each key of several tables, which have sent all of their values.

    Rows are texts before they are sorted by key: an array costs half as much again to move.
    """
    new, old = _key("coalesce(after, before)", tables), _key("before", tables)
    moved = is_move(old, new)
    here = {
        "owner": _owner(tables),
        **{name: name for name in ("segment", "shape", "lsn", "seq", "op")},
        "text": copy_text("coalesce(after, before)"),
        "key": new,
        "known": case(moved, "'a'", _KNOWN) if moves else _KNOWN,
    }
    left = {"op": "'delete'", "text": copy_text("before"), "key": old, "known": "'p'"}
    keyed = parted(events, here, left, moved if moves else None)
    row = ("lsn", "seq", "shape", "op", "text")
    state = last_of_each(keyed, ("key", "owner", "segment"), row, first=("known",))
    kept = ("segment", "shape AS stage", "op", "text", "lsn", "seq", "known")
    return state.selectExpr(*kept, *_NOTHING).filter(_PASSING)


def filled(events: DataFrame, layout: TextLayout, traits: Traits) -> DataFrame:
    """The same for one table, of which some values may not have been sent."""
    segmented = _SegmentedLayout(layout.shape, layout.key_names)
    segment, *keys = key_names(segmented)
    old, new = (_array(layout.keys, side) for side in ("before", "after"))
    arrived = F.expr(case(is_move(old, new), "'a'", _KNOWN))
    keyed = fill(events, segmented, traits).withColumn("known", arrived)
    row = ("op", "before", "after", "unchanged", "lsn", "seq", "origin")
    last = last_of_each(keyed, (segment, *keys), row, first=("known",))
    origin = "CAST(NULL AS array<string>)"
    if traits.unsent and traits.old_rows:
        origin = f"array({', '.join(f'origin.{key}' for key in keys)})"
    state = last.selectExpr(
        f"CAST({segment} AS int) AS segment",
        "op",
        "CASE WHEN op = 'delete' THEN before ELSE after END AS values",
        "lsn",
        "seq",
        "known",
        "CAST(NULL AS int) AS copies",
        "unchanged AS unsent",
        f"{origin} AS origin",
    )
    return state.filter(_PASSING)


class _SegmentedLayout(TextLayout):
    """A layout whose first key is the segment: rows of another one are other rows."""

    @cached_property
    def keys(self) -> tuple[int, ...]:
        return (_SEGMENT, *(self._names.index(name) for name in self.key_names))

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self.columns]

    def typed(self, row: str, index: int) -> Sql:
        if index != _SEGMENT:
            return super().typed(row, index)
        # Where old keys are looked at, only the new one is left of what told the segment.
        return Sql("key.k0" if row == "before" else "CAST(segment AS string)")


def every(events: DataFrame, tables: Sequence[tuple[int, Sequence[Shape], Layout]]) -> DataFrame:
    """Every event of some tables in its place, with the key that the row had before it.

    ``tables``: of each the number of its stage, its shapes, and the layout that arrays are in the
    order of. Of rows without a key an update is two: one row fewer, then one more.
    """
    places = {shape.id: layout.keys for _, shapes, layout in tables for shape in shapes}
    stages = {shape.id: number for number, shapes, _ in tables for shape in shapes}
    events = events.withColumn("stage", F.expr(_by_shape(stages, lambda stage: Sql(str(stage)))))
    keyed = {shape: keys for shape, keys in places.items() if keys}
    parts = []
    if keyed:
        parts.append(_in_place(events.filter(of_shapes(keyed)), keyed))
    if len(keyed) < len(places):
        parts.append(_replaced(events.filter(of_shapes(places.keys() - keyed.keys()))))
    return reduce(DataFrame.unionAll, parts)


def _in_place(events: DataFrame, keys: Mapping[int, Sequence[int]]) -> DataFrame:
    new, old = "coalesce(after, before)", "coalesce(before, after)"
    origin = _by_shape(keys, lambda places: _array(places, old))
    columns = ["segment", "stage", "op", f"{new} AS values", "lsn", "seq", f"{_KNOWN} AS known"]
    return events.selectExpr(*columns, _NOTHING[0], "unchanged AS unsent", f"{origin} AS origin")


def _replaced(events: DataFrame) -> DataFrame:
    gone = "struct('delete' AS op, before AS values, -1 AS copies)"
    come = "struct('insert' AS op, after AS values, 1 AS copies)"
    place = ("segment", "stage", "lsn", "seq")
    rows = events.selectExpr(*place, f"explode(array({gone}, {come})) AS e")
    rows = rows.select(*place, "e.*").filter("values IS NOT NULL")
    return rows.selectExpr(
        "segment", "stage", "op", "values", "lsn", "seq", "'r' AS known", "copies", *_NOTHING[1:]
    )


def _key(row: str, tables: Keys) -> Sql:
    """The text of the key, whichever table a row is of."""
    places = {}
    for shapes, key in tables:
        for shape in shapes:
            names = [column.name for column in shape.columns]
            places[shape.id] = tuple(names.index(name) for name in key)
    return _by_shape(places, lambda places: _text(places, row))


def _by_shape(given: Mapping[int, _Given], made: Callable[[_Given], Sql]) -> Sql:
    """What is made of something that shapes have, by their ids."""
    shapes: dict[_Given, list[int]] = {}
    for shape, one in given.items():
        shapes.setdefault(one, []).append(shape)
    if len(shapes) == 1:
        return made(next(iter(shapes)))
    whens = [
        f"WHEN shape IN ({', '.join(map(str, ids))}) THEN {made(one)}"
        for one, ids in shapes.items()
    ]
    return Sql(f"CASE {' '.join(whens)} END")


def _text(places: Sequence[int], row: str) -> Sql:
    """Texts of some columns as one; none of them holds what is between them."""
    if len(places) == 1:
        return element(row, places[0])
    return Sql(f"concat_ws(char(0), {', '.join(element(row, place) for place in places)})")


def copy_text(array: str) -> Sql:
    """Values as COPY reads them; only where some need it they are escaped, one by one."""
    escaped = "x"
    for character, escape in _ESCAPES:
        escaped = f"replace({escaped}, {character}, {literal(escape)})"
    slow = f"array_join(transform({array}, x -> {escaped}), {TAB}, {NULL})"
    special = f"array_join({array}, '', '') RLIKE {_SPECIAL}"
    return case(special, slow, f"array_join({array}, {TAB}, {NULL})")


def _array(places: Sequence[int], row: str) -> Sql:
    return Sql(f"array({', '.join(element(row, place) for place in places)})")


def _owner(tables: Keys) -> Sql:
    """One number for all shapes of a table: a row may move from partition to partition."""
    owners = {shape.id: number for number, (shapes, _) in enumerate(tables) for shape in shapes}
    return _by_shape(owners, lambda number: Sql(str(number)))
