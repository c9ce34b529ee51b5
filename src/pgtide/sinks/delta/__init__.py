"""The Delta sink: lake tables in one of several modes, exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from pgtide.config.sinks import DeltaSettings
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure, Writers
from pgtide.pipeline.steps import TableWork
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.sinks import Kept, Scope
from pgtide.sinks.delta.history import HistoryTable
from pgtide.sinks.delta.lake_table import LakeTable
from pgtide.sinks.delta.mirror_table import MirrorTable
from pgtide.sinks.delta.moving import recover
from pgtide.sinks.delta.pivot_table import PivotTable
from pgtide.sinks.delta.scd2 import VersionsTable
from pgtide.sinks.sharing import clashes
from pgtide.sinks.target_storage import open_storage
from pgtide.spark.layout import TableName

MODES: dict[str, type[LakeTable]] = {
    table.mode: table for table in (MirrorTable, HistoryTable, VersionsTable, PivotTable)
}


def _without(works: Sequence[TableWork], failed: Sequence[Failure]) -> list[TableWork]:
    named = {failure.work.name for failure in failed}
    return [work for work in works if work.name not in named]


class DeltaSink:
    """Writes batches into Delta tables below one path."""

    whole_transactions = False

    def __init__(self, settings: DeltaSettings, spark: SparkSession) -> None:
        self._storage = open_storage(settings.path, settings.storage)
        self._settings = settings
        self._spark = spark
        self._writers = Writers(spark)

    def write(self, batch: Batch) -> list[Failure]:
        kind = MODES[self._settings.mode]
        refused = clashes(batch)
        if refused and batch.settings.on_error == "stop":
            return refused

        # All look before one begins: each looks at tables that another may be moving.
        recover(self._spark, self._storage)
        places: dict[str, dict[int, TableName]] = {}  # of the relations of some work

        def look(session: SparkSession, work: TableWork) -> None:
            places[work.name] = kind(session, batch, work, self._settings).look()

        def apply(session: SparkSession, work: TableWork) -> None:
            kind(session, batch, work, self._settings).apply(places[work.name])

        unseen = self._writers.run(_without(batch.work, refused), look)
        failed = [*refused, *unseen]
        return [*failed, *self._writers.run(_without(batch.work, failed), apply)]

    def reached(self, scope: Scope, table: TableRules | None = None) -> None:
        """Tables and rows tell what they have."""

    def kept(self, pipeline: str) -> None:
        """Nothing else."""

    def keep(self, pipeline: str, kept: Kept) -> None:
        """It is not needed."""

    def leave(self, pipeline: str, table: TableRules, position: Position) -> None:
        """Nor is this."""

    def close(self) -> None:
        self._writers.close()
