"""Spark for those who may not need it: a Postgres target that is up to date is verified without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import SparkSession

SparkWhenNeeded: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session, or what starts one: called again, it gives the same."""


def started(spark: SparkWhenNeeded) -> SparkSession:
    return spark() if callable(spark) else spark
