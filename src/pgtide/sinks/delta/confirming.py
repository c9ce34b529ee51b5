"""Rows that were read, for ``scd2``: a change where they differ, else a sign of life.

Events of one key in order: one that only confirms what was there belongs to the version before
it. What is left is one event per version, with what follows it, and these columns:

* ``next``         the event that ends the version;
* ``first``        whether it ends the version that the table has;
* ``confirms``     a read that confirms the version that the table has, the last of several;
* ``seen``         where the version was last confirmed;
* ``_pgtide_row``  its values, so that they are made of texts only once;
* ``seen_before``  where the version that the table has was, before the first event ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pgtide.sinks.delta.columns import comparable

_AT = "struct<lsn:bigint,seq:bigint>"
ROW = "_pgtide_row"  # the values of an event's row, by number


def with_following(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Events without reads: each is a version, or none."""
    order = Window.partitionBy(*keys).orderBy("lsn", "seq", "part")
    nowhere = F.lit(None).cast(_AT)
    return rows.withColumns(
        {
            "next": F.lead(F.struct("lsn", "seq", "committed_at")).over(order),
            "first": F.row_number().over(order) == 1,
            "confirms": F.lit(False),
            "seen": nowhere,
            "seen_before": nowhere,
        }
    )


def with_confirmed(
    rows: DataFrame, keys: Sequence[str], values: Mapping[str, Column], there: str
) -> DataFrame:
    """Events of which some are reads; ``there`` is the version that the table has, or NULL.

    ``begins`` says whether there is a row after an event, ``values`` what it holds.
    """
    order = Window.partitionBy(*keys).orderBy("lsn", "seq", "part")
    fields = [f"v{number}" for number in range(len(values))]
    now = F.struct(*[v.alias(name) for name, v in zip(fields, values.values(), strict=True)])
    rows = rows.withColumn(ROW, F.when(F.col("begins"), now))
    before = F.lag(ROW).over(order)
    as_before = _equal(rows, before, [before[name] for name in fields])
    as_there = _equal(rows, F.col(there), [F.col(there)[name] for name in values])
    first = F.row_number().over(order) == 1
    same = F.when(first, as_there).otherwise(as_before)
    confirms = (F.col("op") == "read") & F.col("begins") & same
    rows = rows.withColumn("confirms", F.coalesce(confirms, F.lit(False)))

    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("version", F.sum((~F.col("confirms")).cast("int")).over(so_far))
    at = F.struct("lsn", "seq")
    one = Window.partitionBy(*keys, "version")
    rows = rows.withColumn("seen", F.max(F.when(F.col("confirms"), at)).over(one))
    of_table = (F.col("version") == 0) & (at == F.col("seen"))
    rows = rows.filter(~F.col("confirms") | of_table)
    return rows.withColumns(
        {
            "next": F.lead(F.struct("lsn", "seq", "committed_at")).over(order),
            "first": F.col("version") == 1,
            "seen_before": F.when(F.col("version") == 1, F.lag("seen").over(order)),
        }
    )


def _equal(rows: DataFrame, other: Column, values: Sequence[Column]) -> Column:
    """Whether another row is there and has the values of this one, NULL being one."""
    kind = rows.schema[ROW].dataType
    assert isinstance(kind, StructType)
    pairs = [
        comparable(F.col(ROW)[field.name], field.dataType).eqNullSafe(
            comparable(value, field.dataType)
        )
        for field, value in zip(kind.fields, values, strict=True)
    ]
    return reduce(Column.__and__, pairs, other.isNotNull())
