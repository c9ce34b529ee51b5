from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.rules.bench import Bench


@pytest.fixture
def bench(spark: SparkSession) -> Bench:
    return Bench(spark)
