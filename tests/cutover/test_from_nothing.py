"""An empty target, made with its schema, filled, and handed over to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtide.cutover.cutting_over import Cutover
from pgtide.cutover.outcome import Settings
from pgtide.pipeline.running import PipelineRun
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.after_rows import run_after_rows
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.target_schemas import TargetSchemas
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import PIPELINE, Replica, target_database

SCHEMA = """
CREATE TYPE mood AS ENUM ('happy', 'sad');
CREATE TABLE customers (id serial PRIMARY KEY, name text UNIQUE, mood mood DEFAULT 'happy');
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer int REFERENCES customers, total numeric(12, 2));
CREATE INDEX ON orders (total);
CREATE TABLE notes (note text);
INSERT INTO notes VALUES ('a'), ('a'), (NULL);
INSERT INTO customers (name) SELECT 'n' || n FROM generate_series(1, 200) n;
INSERT INTO orders (customer, total) SELECT n, n FROM generate_series(1, 200) n;
"""


@pytest.fixture
def target(database: Database) -> Iterator[Database]:
    yield from target_database(database)


@pytest.mark.slow
def test_from_nothing_to_handed_over(
    spark: SparkSession, make_captured: MakeCaptured, database: Database, target: Database
) -> None:
    database.execute(SCHEMA)
    replica = Replica(spark, make_captured(database, keyless="full"), target)
    config = replica.config()
    # As if the first attempt had been killed once the log was written.
    assert InitialSnapshot(config, spark).take()
    schemas = TargetSchemas(config, [PIPELINE])
    snapshot = InitialSnapshot(config, spark, schemas=schemas)
    assert snapshot.take()
    database.execute("UPDATE customers SET mood = 'sad' WHERE id = 7; DELETE FROM orders")
    PipelineRun(spark, config, PIPELINE).run(until_current=True)
    with connect(target.url) as connection, connection.transaction():
        run_after_rows(connection, PIPELINE)
    database.execute("INSERT INTO orders (customer, total) VALUES (7, 1)")
    outcome = Cutover(spark, config, PIPELINE, Settings(read_only=True, verify=False)).run()
    assert outcome.ready, outcome.checks
    assert all(check.level == "ok" for check in outcome.checks)
    replica.check_equal("customers", "orders", "notes")
    target.execute("INSERT INTO orders (customer, total) VALUES (8, 2)")
    assert target.execute("SELECT max(id) FROM orders") == [(202,)]
    with pytest.raises(Exception, match="foreign key"):
        target.execute("INSERT INTO orders (customer) VALUES (100000)")
