"""Functions over batches of Arrow in Spark's tasks, without pandas.

``DataFrame.mapInArrow`` does just this and needs no pandas either, but refuses to begin where it
is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: str) -> DataFrame:
    """The batches that a function makes of those of each partition."""

    def partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(batches)

    udf = UserDefinedFunction(
        partition,
        returnType=schema,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    column = udf(*[frame[name] for name in frame.columns])
    mapped = frame._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(mapped, frame.sparkSession)
