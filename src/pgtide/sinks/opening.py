"""Making the sink that a pipeline's settings describe."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtide.config.model import Pipeline
from pgtide.config.sinks import DeltaSettings
from pgtide.errors import ConfigError
from pgtide.sinks import Sink
from pgtide.sinks.delta import DeltaSink


def open_sink(pipeline: Pipeline, spark: SparkSession) -> Sink:
    """The sink of a pipeline, ready to write."""
    match pipeline.sink:
        case DeltaSettings():
            return DeltaSink(pipeline.sink, spark)
    raise ConfigError(f"unknown sink {pipeline.sink.type!r}")
