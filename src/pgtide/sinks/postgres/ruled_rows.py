"""Rules on the way into a Postgres target: values as texts, rows that a filter keeps out as gone.

What a rule hides is hidden before anything reaches the target, be it in a stage.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide import oids, shape
from pgtide.errors import TargetError
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.postgres.stages import Stage
from pgtide.spark.cells import CellReader
from pgtide.spark.compaction import Traits
from pgtide.spark.layout import Layout


def stage_of(pipeline: str, number: int, layout: Layout, rules: TableRules) -> Stage:
    """The stage of what rules leave of the columns, all as texts."""
    cells = rules.apply(CellReader(layout).after(), F.col("op"))
    columns = tuple(
        shape.Column(cell.name, oids.TEXT, type_name="text", attnum=cell.attnum) for cell in cells
    )
    names = [cell.name for cell in cells]
    left = rules.names([column.name for column in layout.columns])
    missing = [key for key in layout.key_names if left.get(key) not in names]
    if missing:
        raise TargetError(
            "a replica needs the key of its table as it is",
            detail=f"Rules leave out column {missing[0]} of {'.'.join(layout.table)}.",
            hint="Keep the key columns.",
        )
    keys = tuple(names.index(left[key]) for key in layout.key_names)
    return Stage(pipeline, number, columns, keys, moves=True, rules=repr(rules.rules))


def apply(state: DataFrame, layout: Layout, rules: TableRules, traits: Traits) -> DataFrame:
    """The state with values and fates as rules say."""
    op, gone = F.col("op"), F.col("op") == "delete"
    nothing = F.lit(None).cast("string")
    reader = CellReader(layout)
    new = reader.after(traits.unsent)
    cells, old = rules.apply(new, op), rules.apply(reader.before(), op)
    fate, known = op, F.col("known")
    keep = rules.keep(new, op)
    sides = {
        "after": F.when(~gone, F.col("values")),
        "before": F.when(gone, F.col("values")),
        "unchanged": F.col("unsent"),
    }
    state = state.withColumns(sides)
    if keep is not None and not layout.key_names:
        state, keep = state.filter(_kept(rules, reader, gone)), None
    if keep is not None:
        # A row that leaves the filter goes, be it there or not; one that comes may be new.
        hinges = F.when(keep.isNull(), F.lit("patch")).otherwise(op)
        fate = F.when(gone, op).when(~keep, F.lit("delete")).otherwise(hinges)
        known = F.lit("r")
    kept_out = fate == "delete"  # of which the target gets the key alone
    values = [
        F.when(gone, before.text if cell.key or not layout.key_names else nothing)
        .when(kept_out, cell.text if cell.key else nothing)
        .otherwise(cell.text)
        for cell, before in zip(cells, old, strict=True)
    ]
    nowhere = F.array(*[F.lit(None).cast("string") for _ in layout.key_names])
    return state.select(
        "segment",
        fate.alias("op"),
        F.array(*values).alias("values"),
        "lsn",
        "seq",
        known.alias("known"),
        "copies",
        _unsent(cells).alias("unsent"),
        (F.coalesce("origin", nowhere) if layout.key_names else F.col("origin")).alias("origin"),
    )


def _kept(rules: TableRules, reader: CellReader, gone: Column) -> Column:
    """Whether a row without a key is one of the target's: as it is, or as it was."""
    insert = F.lit("insert")
    new, old = rules.keep(reader.after(), insert), rules.keep(reader.before(), insert)
    assert new is not None
    assert old is not None
    return F.coalesce(F.when(gone, old).otherwise(new), F.lit(False))


def _unsent(cells: list[Cell]) -> Column:
    marks = [
        F.when(~cell.sent & (F.col("op") != "delete"), F.lit(number))
        for number, cell in enumerate(cells)
        if cell.sent is not None
    ]
    if not marks:
        return F.lit(None).cast("array<int>")
    found = F.array_compact(F.array(*marks))
    return F.when(F.size(found) > 0, found)
