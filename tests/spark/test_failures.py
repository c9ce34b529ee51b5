"""Errors of Spark say what went wrong without the values that they are about."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pgtide.spark.failures import as_pgtide_error


def test_what_java_raises(spark: SparkSession) -> None:
    """The class, and that of the first cause: either alone may say nothing."""
    java: Any = spark.sparkContext._jvm
    with pytest.raises(Py4JError, match="secret") as plain:
        java.java.util.Locale.Builder().setLanguage("secret!")
    error = as_pgtide_error(plain.value, "reading")
    assert error.detail == "java.util.IllformedLocaleException while reading."
    cause = java.java.lang.IllegalStateException("secret")
    with pytest.raises(Py4JError, match="secret") as caused:
        java.java.util.concurrent.CompletableFuture.failedFuture(cause).join()
    error = as_pgtide_error(caused.value, "reading")
    assert error.detail == (
        "java.util.concurrent.CompletionException by java.lang.IllegalStateException while reading."
    )
