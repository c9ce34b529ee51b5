"""A change log that Spark reads: its tables, and their rows as frames."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pgtide.errors import ConfigError
from pgtide.log.reader import Log
from pgtide.log.schema import CHANGES, SHAPES
from pgtide.log.storage import Storage
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.spark.alignment import Alignment, added_columns
from pgtide.spark.logged_table import LoggedTable
from pgtide.spark.moments import Moment, moment_of, until
from pgtide.spark.paths import spark_path
from pgtide.spark.session_checks import check_session


@dataclass(frozen=True)
class ChangeLog:
    """A log that is read by Spark."""

    spark: SparkSession
    storage: Storage
    log: Log
    shapes: Mapping[int, Shape]

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str],
        options: Mapping[str, str] | None,
    ) -> ChangeLog:
        check_session(spark)
        log = Log(path, dict(options or {}))
        return cls(spark, Storage(os.fspath(path), dict(options or {})), log, log.shapes())

    @property
    def complete_from(self) -> int:
        return self.log.snapshot().complete_from

    def table(self, name: str) -> LoggedTable:
        return LoggedTable.find(name, self.shapes)

    def table_at(self, name: str, as_of: Moment) -> LoggedTable:
        """The table that had the name then."""
        match moment_of(as_of):
            case None:
                return self.table(name)
            case Position() as position:
                # What is at the position itself does not count, unless it is behind some rows.
                last = Lsn(position.lsn if position.seq else max(position.lsn - 1, 0))
            case _:
                row = self.batch().filter(until(as_of)).agg(F.max("lsn")).head()
                last = Lsn((row and row[0]) or 0)
        return LoggedTable.find(name, self.shapes, last)

    def refuse_dropped(self, table: LoggedTable, name: str, counted: Column) -> None:
        """Refuse a table that was dropped by then: it has no rows, and no state."""
        relation = table.layout.shape.oid
        for row in self._ddl_of(relation, counted):
            dropped = json.loads(row["payload"]).get("dropped", ())
            if any(item["type"] == "table" and item.get("oid") == relation for item in dropped):
                raise ConfigError(
                    f"{name} was dropped at {Lsn(row['lsn'])}:{row['seq']}",
                    hint="pgtide.changes() has what happened to it; or ask for its rows as of "
                    "before: as_of=…",
                )

    def tables(self, names: Sequence[str]) -> list[LoggedTable]:
        """Tables that are read together, each once."""
        found = [self.table(name) for name in names]
        if not found or len({one.name for one in found}) < len(found):
            raise ConfigError(
                "the tables to read are none, or one of them twice",
                detail=f"Asked for: {', '.join(names) or 'nothing'}.",
                hint='Name each once, for example ["public.orders", "public.items"].',
            )
        return found

    def batch(self, tables: Sequence[LoggedTable] | None = None) -> DataFrame:
        """The log, or what is filed under the names of tables: files without them are skipped."""
        rows = self.spark.read.format("delta").load(self._path(CHANGES))
        if tables is None:
            return rows
        names = {name for table in tables for _, name in table.names}
        if names >= {shape.table for shape in self.shapes.values()}:
            return rows  # nothing to skip, and comparing names takes time
        return rows.filter(F.col("table").isin(*sorted(names)))

    def stream(self) -> DataFrame:
        return self.spark.readStream.format("delta").load(self._path(CHANGES))

    def shapes_frame(self) -> DataFrame:
        return self.spark.read.format("delta").load(self._path(SHAPES))

    def _path(self, name: str) -> str:
        return spark_path(self.storage.child(name).root)

    def aligned(self, rows: DataFrame, tables: Sequence[LoggedTable]) -> DataFrame:
        """Rows of these tables, in the order of the columns that each has now."""
        return reduce(operator.or_, map(self._alignment, tables)).apply(rows)

    def _alignment(self, table: LoggedTable) -> Alignment:
        plain = Alignment.to(table.layout.shape, table.shapes)
        if plain.complete:
            return plain
        # Columns were added: only then the log is searched for what older rows have in them.
        relation = table.layout.shape.oid
        added = added_columns([row["payload"] for row in self._ddl_of(relation)], relation)
        return Alignment.to(table.layout.shape, table.shapes, added)

    def _ddl_of(self, relation: int, counted: Column | None = None) -> list[Row]:
        """Commands that name a table, and few others: the text tells."""
        mentioned = F.col("payload").contains(f'"oid": {relation}')
        ddl = self.batch().filter((F.col("op") == "ddl") & mentioned)
        ddl = ddl if counted is None else ddl.filter(counted)
        return ddl.select("payload", "lsn", "seq").collect()
