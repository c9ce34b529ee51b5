"""Making the sink that a pipeline's settings describe."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtide.config.model import Pipeline
from pgtide.config.sinks import DeltaSettings, FileSettings, PostgresSettings, StdoutSettings
from pgtide.log.storage import Storage
from pgtide.sinks import Sink
from pgtide.sinks.delta import DeltaSink
from pgtide.sinks.file import FileSink
from pgtide.sinks.postgres.history_sink import HistorySink
from pgtide.sinks.postgres.sink import PostgresSink
from pgtide.sinks.stdout import StdoutSink


def open_sink(pipeline: Pipeline, spark: SparkSession, log: Storage) -> Sink:
    """The sink of a pipeline that reads a log, ready to write."""
    match pipeline.sink:
        case DeltaSettings():
            return DeltaSink(pipeline.sink, spark)
        case FileSettings():
            return FileSink(pipeline.sink, spark)
        case StdoutSettings():
            return StdoutSink(pipeline.sink)
        case PostgresSettings():
            kind = HistorySink if pipeline.sink.mode == "history" else PostgresSink
            return kind(pipeline.sink, spark, log)
