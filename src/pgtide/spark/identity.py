"""What UPDATE and DELETE send of the old row: the replica identity of the rows' own tables.

For rows of partitions that is the partition's, not that of the root whose layout they have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.shape import Shape
from pgtide.spark.layout import Layout


def with_identity(layout: Layout, shapes: Iterable[Shape]) -> Layout:
    """The layout with the identity that rows of all these shapes have."""
    known = list(shapes)
    whole = all(shape.replica_identity == "f" for shape in known)
    sent = [{c.name for c in shape.columns if c.identity} for shape in known]
    common = set.intersection(*sent) if sent else set()
    columns = tuple(replace(c, identity=c.name in common) for c in layout.columns)
    shape = replace(layout.shape, replica_identity="f" if whole else "i", columns=columns)
    return replace(layout, shape=shape)


def left_out(layout: Layout) -> tuple[int, ...]:
    """Indexes of the columns that an old row does not have."""
    if layout.shape.replica_identity == "f":
        return ()
    return tuple(index for index, column in enumerate(layout.columns) if not column.identity)


def with_old_rows(events: DataFrame, layout: Layout) -> DataFrame:
    """Events in which a delete has the old row as its row, with what that lacks as not sent."""
    lacking = F.array(*[F.lit(index) for index in left_out(layout)]).cast("array<int>")
    return events.withColumns(
        {
            "after": F.coalesce("after", "before"),
            "unchanged": F.when(F.col("op") == "delete", lacking).otherwise(F.col("unchanged")),
        }
    )
