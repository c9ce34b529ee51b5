"""Making the sink that a pipeline's settings describe."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtide.config.model import Pipeline
from pgtide.config.sinks import DeltaSettings, FileSettings, StdoutSettings
from pgtide.sinks import Sink
from pgtide.sinks.delta import DeltaSink
from pgtide.sinks.file import FileSink
from pgtide.sinks.stdout import StdoutSink


def open_sink(pipeline: Pipeline, spark: SparkSession) -> Sink:
    """The sink of a pipeline, ready to write."""
    match pipeline.sink:
        case DeltaSettings():
            return DeltaSink(pipeline.sink, spark)
        case FileSettings():
            return FileSink(pipeline.sink, spark)
        case StdoutSettings():
            return StdoutSink(pipeline.sink)
