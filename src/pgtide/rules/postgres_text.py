"""Values that a rule computed, as texts that Postgres reads."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide.errors import ConfigError

_AS_CAST = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.DateType)


def postgres_text(value: Column, type_: t.DataType) -> Column:
    """The text of a typed value; raises ConfigError for types that no column can have."""
    match type_:
        case t.StringType():
            return value
        case t.BooleanType():
            return F.when(value, "t").when(~value, "f")
        case t.BinaryType():
            return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
        case t.TimestampNTZType():
            return value.cast("string")
        case t.TimestampType():
            return F.concat(_utc(value).cast("string"), F.lit("+00"))
        case t.FloatType() | t.DoubleType():
            return F.regexp_replace(value.cast("string"), r"\.0(?=E|$)", "")
        case _ if isinstance(type_, _AS_CAST):
            return value.cast("string")
    raise ConfigError(
        f"its SQL gives {type_.simpleString()}, which no column can hold",
        hint="cast it, for example with to_json()",
    )


def _utc(value: Column) -> Column:
    """The wall clock in UTC, whatever the session's time zone is."""
    seconds = (F.unix_micros(value).cast("decimal(20,0)") / 1_000_000).cast("decimal(18,6)")
    return F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
