"""Sweeps: which rows of a table are gone at the source, as a refresh that replaces found.

A sweep says: whatever has a position before ``older_than`` was not seen any more. It concerns
the whole table, a range of its first key column, or some keys. Its texts are Postgres's, its key
columns those of its shape, in the shape's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType

from pgtide.position import Position
from pgtide.spark.codecs import Codec
from pgtide.spark.layout import Layout
from pgtide.spark.sql_text import Sql, element, literal


@dataclass(frozen=True)
class Sweep:
    """One sweep of the log."""

    at: Position
    older_than: Position
    low: str | None = None  # of the first key column, both included; None: open
    high: str | None = None
    keys: tuple[tuple[str, ...], ...] | None = None
    partition: int | None = None  # the relation, when rows of one partition are meant
    committed_at: datetime | None = None

    @classmethod
    def of(
        cls,
        payload: Mapping[str, Any],
        at: Position,
        partition: int | None,
        committed_at: datetime | None = None,
    ) -> Sweep:
        """Read what a row of the log says."""
        keys = payload.get("keys")
        return cls(
            at=at,
            older_than=Position.parse(payload["older_than"]),
            low=payload.get("low"),
            high=payload.get("high"),
            keys=None if keys is None else tuple(tuple(key) for key in keys),
            partition=partition,
            committed_at=committed_at,
        )

    @property
    def whole(self) -> bool:
        """Whether every row of the table, or of the partition, is meant."""
        return self.low is None and self.high is None and self.keys is None

    def in_range(self, key: Column | None, codec: Codec) -> Column:
        """Whether the first key column lies in the range; never NULL. ``key`` is its value."""
        if key is None or (self.low is None and self.high is None):
            return F.lit(True)
        between = F.lit(True)
        if self.low is not None:
            between &= key >= F.expr(codec.decode(literal(self.low)))
        if self.high is not None:
            between &= key <= F.expr(codec.decode(literal(self.high)))
        return F.coalesce(between, F.lit(False))

    def key_rows(
        self, spark: SparkSession, codecs: Sequence[Codec], names: Sequence[str]
    ) -> DataFrame:
        """The keys as typed rows with these names."""
        texts = spark.createDataFrame([(list(key),) for key in self.keys or ()], "k array<string>")
        values = [
            F.expr(codec.decode(element("k", number))).alias(name)
            for number, (codec, name) in enumerate(zip(codecs, names, strict=True))
        ]
        return texts.select(*values).distinct()


def key_codecs(layout: Layout) -> list[Codec]:
    """How the texts of the key columns become values, whatever the policy."""
    typed = layout.under("null")
    return [typed.codecs[index] for index in typed.keys]


def key_value(column: Sql, kept: DataType, codec: Codec) -> Column:
    """A key column as a value, also where the policy keeps its texts."""
    as_text = isinstance(kept, StringType) and not isinstance(codec.spark_type, StringType)
    return F.expr(codec.decode(column)) if as_text else F.col(column)
