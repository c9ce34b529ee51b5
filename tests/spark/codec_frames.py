"""Texts through codecs, many of one type in one query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, TimestampType

from pgtide.shape import Column
from pgtide.spark.codecs import Codec, codec_for
from pgtide.spark.sql_text import Sql

UNREPRESENTABLE = "unrepresentable"


@dataclass(frozen=True)
class Bits:
    """A float by its bits, so that NaN equals NaN and -0.0 is not 0.0."""

    text: str


def plain(value: Any) -> Any:
    """The value in a form that compares exactly: type, sign of zero and NaN included."""
    if isinstance(value, float):
        return Bits(value.hex() if value == value else "nan")
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def shown(value: Expression, spark_type: DataType) -> Expression:
    """Timestamps as microseconds: PySpark would convert them by this machine's time zone."""
    if isinstance(spark_type, TimestampType):
        return F.unix_micros(value)
    if isinstance(spark_type, ArrayType):
        element = spark_type.elementType
        return F.transform(value, lambda item: shown(item, element))
    return value


def decode_all(
    spark: SparkSession,
    cases: Sequence[tuple[Column, Sequence[str | None]]],
    unbounded: DecimalType | None = None,
) -> list[list[Any]]:
    """What each column's texts decode to, in order; UNREPRESENTABLE where they say so.

    One query for all, and in it one column for each codec, because planning is what takes time:
    texts of codecs lie beside each other, the shorter lists padded with NULL.
    """
    texts_of: dict[Codec, list[str | None]] = {}
    for column, texts in cases:
        texts_of.setdefault(codec_for(column, unbounded), []).extend(texts)
    height = max(map(len, texts_of.values()))
    table: dict[str, pa.Array[Any]] = {"n": pa.array(range(height), pa.int32())}
    selected = []
    for name, (codec, all_texts) in zip(
        map(str, range(len(texts_of))), texts_of.items(), strict=True
    ):
        table[name] = pa.array([*all_texts, *[None] * (height - len(all_texts))], pa.string())
        text = Sql(f"`{name}`")
        selected.append(shown(F.expr(codec.decode(text)), codec.spark_type).alias(f"v{name}"))
        selected.append(F.expr(codec.unrepresentable(text)).alias(f"u{name}"))
    # A job of its own, not constant folding while the plan is made.
    frame = spark.createDataFrame(pa.table(table)).repartition(2)
    rows = sorted(frame.select("n", *selected).collect(), key=lambda row: row["n"])
    outcomes = {
        codec: iter(
            [_outcome(row, str(n), text) for row, text in zip(rows, all_texts, strict=False)]
        )
        for n, (codec, all_texts) in enumerate(texts_of.items())
    }
    codecs = [codec_for(column, unbounded) for column, _ in cases]
    return [[next(outcomes[c]) for _ in texts] for c, (_, texts) in zip(codecs, cases, strict=True)]


def _outcome(row: Row, name: str, text: str | None) -> Any:
    value, bad = row[f"v{name}"], row[f"u{name}"]
    assert bad is not None, "unrepresentable is never NULL"
    if bad:
        assert value is None, "no value where there is none"
        return UNREPRESENTABLE
    if text is None:
        assert value is None
    else:
        assert value is not None, f"column {name}: a text became NULL"
    return plain(value)
