"""Fixtures of the Postgres sink: a captured database and one that follows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import Replica, target_database


@pytest.fixture
def target(database: Database) -> Iterator[Database]:
    yield from target_database(database)


@pytest.fixture
def replica(spark: SparkSession, captured: Captured, target: Database) -> Replica:
    return Replica(spark, captured, target)
