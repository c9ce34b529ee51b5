"""Rows of all shapes that a table ever had, as rows of one of them.

Columns are matched by attnum within a relation, by name between relations (a partition and
its root, a table dropped and created again). A column that a shape did not have yet holds
what ADD COLUMN said older rows have, else NULL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.shape import Column, Shape
from pgtide.spark.sql_text import case

Places = tuple[int | str | None, ...]  # index in the old row, or text, or nothing


@dataclass(frozen=True)
class Alignment:
    """How rows of several shapes become rows of one, or of one per table."""

    places: Mapping[int, Places]  # by shape id; not those that need no change
    widths: Mapping[int, int]

    @classmethod
    def to(
        cls, shape: Shape, shapes: Iterable[Shape], added: Mapping[int, str] | None = None
    ) -> Alignment:
        """Align ``shapes`` to one; ``added`` are texts of columns that were added, by attnum."""
        places, widths = {}, {}
        straight = tuple(range(len(shape.columns)))
        for old in shapes:
            found = tuple(_place(column, old, shape, added or {}) for column in shape.columns)
            widths[old.id] = len(old.columns)
            if found != straight or len(old.columns) != len(shape.columns):
                places[old.id] = found
        return cls(places, widths)

    def __or__(self, other: Alignment) -> Alignment:
        """The rows of two tables at once."""
        return Alignment({**self.places, **other.places}, {**self.widths, **other.widths})

    @property
    def complete(self) -> bool:
        """Whether every shape has every column."""
        return all(place is not None for places in self.places.values() for place in places)

    def apply(self, frame: DataFrame) -> DataFrame:
        """The rows with their arrays in the order of the one shape, each checked for its width.

        ``of_shapes`` leaves out rows of other shapes, but Spark may look at them first: what
        several conditions of a filter have in common it computes before them. So they have none.
        """
        checked = {side: _checked(side, self.widths) for side in ("before", "after")}
        frame = frame.withColumns(checked)
        if not self.places:
            return frame
        moved = {side: _reordered(F.col(side), self.places) for side in ("before", "after")}
        return frame.withColumns({**moved, "unchanged": _renumbered(self.places)})


def of_shapes(ids: Iterable[int]) -> SparkColumn:
    """Rows of these shapes, for ``apply``."""
    # No shape is 0. With one number alone Spark would put it wherever ``shape`` stands in other
    # conditions, and rows of other shapes, if it looks at them first, would pass for these.
    return F.col("shape").isin(0, *ids)


def added_columns(ddl: Iterable[str], relation: int) -> dict[int, str]:
    """From payloads of DDL: what rows from before ADD COLUMN hold in a column, by attnum."""
    added: dict[int, str] = {}
    for payload in ddl:
        objects = json.loads(payload).get("objects", ())
        for item in objects:
            if item.get("oid") == relation:
                added.update(missing_values(item, objects))
    return added


def missing_values(
    table: Mapping[str, Any], objects: Iterable[Mapping[str, Any]]
) -> dict[int, str]:
    """Of a table as a DDL describes it, the columns that older rows have a value in, as text.

    Of a partitioned table only its partitions know, which are among the DDL's ``objects``. ADD
    COLUMN gives all of them the same value; what only some have they brought along when they
    were attached. Their columns may have other numbers.
    """
    columns = table.get("columns", ())
    if table.get("kind") != "p":
        return {c["attnum"]: _only_element(c["missing"]) for c in columns if c["missing"]}
    partitions = [
        {c["name"]: c["missing"] for c in item["columns"]}
        for item in objects
        if item.get("kind") == "r" and (item.get("root") or {}).get("oid") == table["oid"]
    ]
    found = {}
    for column in columns:
        values = {partition.get(column["name"]) for partition in partitions}
        if len(values) == 1 and (value := values.pop()):
            found[column["attnum"]] = _only_element(value)
    return found


def _only_element(array: str) -> str:
    """The element of a one-element array in Postgres text."""
    element = array[1:-1]
    return re.sub(r"\\(.)", r"\1", element[1:-1]) if element.startswith('"') else element


def _place(column: Column, old: Shape, new: Shape, added: Mapping[int, str]) -> int | str | None:
    by_attnum = old.oid == new.oid and column.attnum is not None
    for index, known in enumerate(old.columns):
        if (known.attnum == column.attnum) if by_attnum else (known.name == column.name):
            return index
    return added.get(column.attnum) if column.attnum is not None else None


def _checked(row: str, widths: Mapping[int, int]) -> SparkColumn:
    """Reading past the end of an array gives NULL, which would be an invented value."""
    fits, known = [], sorted(widths)
    for width in sorted(set(widths.values())):
        ids = ", ".join(str(shape) for shape in known if widths[shape] == width)
        fits.append(f"(size({row}) = {width} AND shape IN ({ids}))")
    damaged = f"{row} IS NOT NULL AND shape IN ({', '.join(map(str, known))})"
    message = "'a row of the log does not fit its shape, at LSN '"
    refusal = f"CAST(raise_error(concat({message}, CAST(lsn AS string))) AS array<string>)"
    return F.expr(case(" OR ".join(fits), row, case(damaged, refusal)))


def _reordered(row: SparkColumn, moved: Mapping[int, Places]) -> SparkColumn:
    result = row
    for shape, places in moved.items():
        ordered = F.array(*[_value(row, place) for place in places])
        result = F.when((F.col("shape") == shape) & row.isNotNull(), ordered).otherwise(result)
    return result


def _value(row: SparkColumn, place: int | str | None) -> SparkColumn:
    return F.get(row, F.lit(place)) if isinstance(place, int) else F.lit(place).cast("string")


def _renumbered(moved: Mapping[int, Places]) -> SparkColumn:
    result = F.col("unchanged")
    for shape, places in moved.items():
        numbers = [
            F.when(F.array_contains("unchanged", F.lit(place)), F.lit(index))
            for index, place in enumerate(places)
            if isinstance(place, int)
        ]
        renumbered = F.array_compact(F.array(*numbers)) if numbers else F.lit(None)
        here = (F.col("shape") == shape) & F.col("unchanged").isNotNull()
        result = F.when(here, renumbered.cast("array<int>")).otherwise(result)
    return result
