"""Events that the rules of a pipeline keep from its target: left out on purpose, and counted.

Counted event by event, whatever the sink makes of them: of a row that changed five times within
a batch a mirror gets one state, and the filter may have kept back five events.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.config.sinks import DeltaSettings, PostgresSettings
from pgtide.pipeline.batch import Batch
from pgtide.sinks.events import layouts, stepped_tables


def withheld(batch: Batch) -> dict[str, int]:
    """How many events of each table; one Spark job, none where no rule leaves anything out."""
    if batch.settings.on_unrepresentable == "fail":
        # What matters to the target was read; an event that a later one has undone may not be.
        lenient = batch.settings.model_copy(update={"on_unrepresentable": "null"})
        batch = replace(batch, settings=lenient)
    chosen = [
        rows
        for rows in layouts(batch, stepped_tables(batch))
        if batch.rules(rows.layout.table).selects
    ]
    if not chosen:
        return {}
    # Tables have the row, or what the filter said of it before; files have only the event.
    undecided = isinstance(batch.settings.sink, DeltaSettings | PostgresSettings)
    shown = [
        rows.admitted(batch, undecided=undecided).select(F.lit(number).alias("number"))
        for number, rows in enumerate(chosen)
    ]
    counted = reduce(DataFrame.union, shown).groupBy("number").count().collect()
    admitted = {row["number"]: row["count"] for row in counted}
    kept_back: dict[str, int] = {}
    for number, rows in enumerate(chosen):
        name = ".".join(rows.layout.table)
        count = rows.rows - admitted.get(number, 0)
        kept_back[name] = kept_back.get(name, 0) + count
    return kept_back
