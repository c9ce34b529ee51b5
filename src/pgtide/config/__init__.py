"""Settings: the model, loading it from YAML and the environment, and table patterns."""

from pgtide.config.connection_string import ConnectionString
from pgtide.config.loading import load
from pgtide.config.model import Config, Log, Pipeline, Source, Spark
from pgtide.config.patterns import TablePatterns

__all__ = [
    "Config",
    "ConnectionString",
    "Log",
    "Pipeline",
    "Source",
    "Spark",
    "TablePatterns",
    "load",
]
