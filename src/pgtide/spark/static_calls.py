"""Static Java methods as Spark columns, compiled into Spark's own code.

Spark's SQL has no function for a few things that Java has: the bits of a floating point number,
a digest as bytes. ``reflect()`` is interpreted, counts as not deterministic and may not stand in
an aggregate; what Spark itself uses for such calls is part of the JVM's classes.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, SparkSession

DOUBLE_BITS = ("java.lang.Double", "doubleToLongBits", "bigint")
FLOAT_BITS = ("java.lang.Float", "floatToIntBits", "int")
MD5 = ("org.apache.commons.codec.digest.DigestUtils", "md5", "binary")
FIRST_EIGHT_BYTES = ("org.apache.spark.unsafe.types.ByteArray", "getPrefix", "bigint")
"""Class, method, and what it returns; each takes one value and is NULL where that is NULL."""


def static_call(spark: SparkSession, method: tuple[str, str, str], value: Column) -> Column:
    """One of the methods above, applied to a column."""
    class_name, name, returns = method
    jvm: Any = spark.sparkContext._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    python = jvm.org.apache.spark.api.python.PythonUtils
    argument: Any = value
    invoke = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        jvm.java.lang.Class.forName(class_name),
        jvm.org.apache.spark.sql.types.DataType.fromDDL(returns),
        name,
        python.toSeq([utils.expression(argument._jc)]),
        python.toSeq([]),  # the types of arguments, where they are to be converted
        True,  # NULL in, NULL out
        False,  # it never returns NULL by itself
        True,  # deterministic
        getattr(getattr(jvm.scala, "None$"), "MODULE$"),
    )
    made: Any = Column
    column: Column = made(utils.column(invoke))
    return column
