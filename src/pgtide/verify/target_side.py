"""The same checksums, keys and columns as Spark computes them, in one version of a mirror."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide.sinks.delta.columns import DELETED
from pgtide.spark.session import prepare
from pgtide.spark.sql_text import Sql, quoted
from pgtide.spark.static_calls import FIRST_EIGHT_BYTES, MD5, static_call
from pgtide.verify.canonical import Canonical, bits_name, made_name, row_target
from pgtide.verify.planning import Compared, TablePlan
from pgtide.verify.postgres_side import InFlight, Row, Sums, merged
from pgtide.verify.ranges import KeyRanges, Ranges

ROW_HASH, KEY_HASH, NUMBER = "_pgtide_row_hash", "_pgtide_key_hash", "_pgtide_range"

# Of a mirror that one task reads, if its files are as small. With the default of 128 MB a few tasks
# are of unequal size, and the last one keeps a single core busy.
PARTITION_BYTES = 64 << 20


def verifying_session(spark: SparkSession) -> SparkSession:
    """A session in which the canonical expressions hold, whatever the user's is set to."""
    session = prepare(spark.newSession())
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.files.maxPartitionBytes", PARTITION_BYTES)
    cores = spark.conf.get("spark.sql.shuffle.partitions", None)
    if cores is not None:
        session.conf.set("spark.sql.shuffle.partitions", cores)
    return session


@dataclass(frozen=True)
class TargetTable:
    """The queries of one mirror at a pinned version; ``in_flight`` are rows that do not count."""

    spark: SparkSession
    plan: TablePlan
    version: int | None  # None: there is no such table, which is an empty one
    in_flight: InFlight
    gentle: bool = False  # use one core at most

    def checksums(
        self, ranges: Ranges, numbers: Sequence[int] | None = None, *, outside: bool = False
    ) -> Sums:
        """By range, rows and the sum of their hashes; ``outside``: what the source has no range
        for counts as well."""
        frame = self._numbered(ranges)
        if numbers is not None:
            frame = frame.filter(_among(ranges, numbers, outside=outside))
        counted = frame.groupBy(NUMBER).agg(F.count("*"), F.sum(ROW_HASH))
        sums: Sums = {}
        merged(sums, ((row[0], row[1], row[2]) for row in counted.collect()))
        return sums

    def tagged(self, query: Callable[[], Sums]) -> Sums:
        """Run a query so that ``interrupt`` can end it; in a thread of its own."""
        # A tag of the session's would be known to this thread alone.
        context = self.spark.sparkContext
        context.addJobTag(self._tag)
        try:
            return query()
        finally:
            context.removeJobTag(self._tag)

    def interrupt(self) -> None:
        """End the job that runs just now, and with it the query; between two there is none."""
        self.spark.sparkContext.cancelJobsWithTag(self._tag)

    @property
    def _tag(self) -> str:
        return f"pgtide-verify-{id(self.plan)}"

    def rows(self, ranges: Ranges, numbers: Sequence[int]) -> list[Row]:
        """The rows of some ranges."""
        frame = self._numbered(ranges).filter(_among(ranges, numbers, outside=False))
        keys = [_postgres_text(key).alias(f"k{n}") for n, key in enumerate(self.plan.keys)]
        key_hash = F.col(KEY_HASH) if self.plan.keys else F.lit(0)
        chosen = frame.select(key_hash, ROW_HASH, *keys)
        return [Row(row[0], row[1], tuple(row[2:])) for row in chosen.collect()]

    def column_hashes(self, key_hashes: Collection[int]) -> dict[int, list[int]]:
        """By key, a hash of each column."""
        columns = [self._hash([value]).alias(f"c{n}") for n, value in enumerate(self.plan.values)]
        frame = self._hashed(row=False).filter(F.col(KEY_HASH).isin(*key_hashes))
        found = frame.select(KEY_HASH, *columns).collect()
        return {row[0]: list(row[1:]) for row in found}

    def hashes_of(self, frame: DataFrame) -> list[int]:
        """Hashes of rows that have the mirror's columns."""
        rows = self._with_made(frame).select(self._hash(self.plan.values)).distinct()
        return [row[0] for row in rows.collect()]

    # -- frames -------------------------------------------------------------------------

    def _frame(self) -> DataFrame:
        if self.version is None:
            fields = [column.field for column in self.plan.mirror.columns()]
            return self.spark.createDataFrame([], t.StructType(fields))
        reader = self.spark.read.format("delta").option("versionAsOf", self.version)
        frame = reader.load(self.plan.target.spark_path)
        if self.plan.mirror.soft_delete:
            frame = frame.filter(f"{DELETED} IS NOT TRUE")
        return frame.coalesce(1) if self.gentle else frame

    def _hashed(self, *, row: bool = True) -> DataFrame:
        frame = self._with_made(self._without_keys(self._frame()))
        hashes = {ROW_HASH: self._hash(self.plan.values)} if row else {}
        if self.plan.keys:
            hashes[KEY_HASH] = self._hash(self.plan.key_values)
        frame = frame.withColumns(hashes)
        if row and self.in_flight and not self.plan.keys:
            frame = frame.filter(~F.col(ROW_HASH).isin(*self.in_flight))
        return frame

    def _numbered(self, ranges: Ranges) -> DataFrame:
        return self._hashed().withColumn(NUMBER, F.expr(ranges.of_target))

    def _without_keys(self, frame: DataFrame) -> DataFrame:
        """Rows whose key is not in flight."""
        if not self.in_flight or not self.plan.keys:
            return frame
        layout = self.plan.mirror.layout
        texts = [f"k{n} string" for n in range(len(self.plan.keys))]
        keys = self.spark.createDataFrame(list(self.in_flight), ", ".join(texts))
        codecs = [layout.codecs[index] for index in self.plan.key_indexes]
        typed = keys.selectExpr(
            *[f"{codec.decode(Sql(f'k{n}'))} AS _pgtide_key{n}" for n, codec in enumerate(codecs)]
        )
        same = [
            F.col(quoted(key.target)).eqNullSafe(F.col(f"_pgtide_key{n}"))
            for n, key in enumerate(self.plan.keys)
        ]
        return frame.join(F.broadcast(typed), same, "left_anti")

    def _with_bits(self, frame: DataFrame) -> DataFrame:
        """With the bits of floating point columns beside them."""
        made = {}
        for column in self.plan.columns:
            method = column.value.bits
            if method is None:
                continue
            value = F.col(quoted(column.target))
            if isinstance(column.type, t.ArrayType):
                made[bits_name(column.target)] = F.transform(value, self._calling(method))
            else:
                made[bits_name(column.target)] = static_call(self.spark, method, value)
        return frame.withColumns(made) if made else frame

    def _with_made(self, frame: DataFrame) -> DataFrame:
        """With columns of what is made only once, although it is needed twice."""
        made = {
            made_name(column.target): F.expr(column.value.made)
            for column in self.plan.columns
            if column.value.made is not None
        }
        frame = self._with_bits(frame)
        return frame.withColumns(made) if made else frame

    def _calling(self, method: tuple[str, str, str]) -> Callable[[Column], Column]:
        return lambda item: static_call(self.spark, method, item)

    def _hash(self, values: list[Canonical]) -> Column:
        digest = static_call(self.spark, MD5, F.expr(row_target(values)))
        return static_call(self.spark, FIRST_EIGHT_BYTES, digest)


def _among(ranges: Ranges, numbers: Sequence[int], *, outside: bool) -> Column:
    chosen = F.col(NUMBER).isin(*numbers)
    if not outside or not isinstance(ranges, KeyRanges):
        return chosen
    known = ranges.numbers
    return chosen | (F.col(NUMBER) < known.start) | (F.col(NUMBER) >= known.stop)


def _postgres_text(key: Compared) -> Column:
    """A key as Postgres reads it."""
    value = quoted(key.target)
    match key.type:
        case t.BinaryType():
            return F.expr(f"concat('\\\\x', lower(hex({value})))")
        case t.BooleanType():
            return F.expr(f"IF({value}, 't', 'f')")
        case t.TimestampType():
            return F.expr(f"concat(CAST({value} AS STRING), '+00')")
        case _:
            return F.expr(f"try_cast({value} AS STRING)")
