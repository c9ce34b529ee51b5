"""Filling columns that were added, in rows that a table of the lake has."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column

from pgtide.sinks.added_columns import AddedColumns
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.target import Target
from pgtide.spark.sql_text import quoted


def fill_columns(
    target: Target, rows: Column, added: AddedColumns, columns: Sequence[TargetColumn]
) -> None:
    """Give rows the known values of columns that were added.

    A merge with one row, because an update takes no values from elsewhere: literals would have
    to come by way of Python, which does not know all of their types.
    """
    names = {column.attnum: column.name for column in columns}
    cells = [cell for cell in added.cells() if cell.attnum in names]
    if not cells:
        return
    values = [cell.value.alias(f"v{number}") for number, cell in enumerate(cells)]
    found = added.row().select(*values)
    # Asked now: what a type cannot hold is refused before anything is written, and columns
    # that are NULL are so already.
    nulls = found.select(*[value.isNull() for value in map(found.__getitem__, found.columns)])
    empty = nulls.first() or ()
    wanted: dict[str, str | Column] = {
        quoted(names[cell.attnum]): f"new.v{number}"
        for number, cell in enumerate(cells)
        if not empty[number]
    }
    if not wanted:
        return
    merge = target.table().alias("old").merge(found.alias("new"), rows)
    merge.whenMatchedUpdate(set=wanted).execute()
