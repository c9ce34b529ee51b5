"""What a verification waits for, and what it does not wait for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.postgres.connection import connect
from pgtide.postgres.slot import capture_pids
from pgtide.spark.sql_text import Sql
from pgtide.verify.own_capture import OwnCapture
from pgtide.verify.ranges import KeyRanges
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until
from tests.verify.lake import lake_config, table_report, verify

ROWS = 5000


@pytest.mark.slow
def test_rows_that_are_read_again(spark: SparkSession, captured: Captured) -> None:
    """After DDL that capture sees only now; and where it is not the time to read them."""
    captured.run(
        f"""CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, {ROWS});
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO u VALUES (-1), (0), (1);
"""
    )
    config = lake_config(captured)
    verify(spark, config)
    captured.run("ALTER TABLE t ADD x float8 DEFAULT random();\n")
    read = table_report(verify(spark, config), "t")
    assert (read.equal, read.rows, read.in_flight) == (True, ROWS, 0), read

    now = datetime.now(UTC)
    window = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=4):%H:%M}"
    settings = {**captured.settings, "history": {"window": window}}
    config = lake_config(replace(captured, settings=settings))
    RefreshStore(Storage(config.log.path)).add(Refresh("public.t"))
    report = verify(spark, config, part_rows=1000)
    assert "still being read" in table_report(report, "t").refused
    assert (table_report(report, "u").equal, table_report(report, "u").rows) == (True, 3)


def test_our_own_capture_ends_by_itself_when_it_is_left(captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    config = lake_config(captured)
    capture = OwnCapture(config)
    with connect(config.source.url.reveal()) as connection:

        def captures() -> bool:
            return bool(capture_pids(connection, config.source.slot))

        capture.ensure()
        try:
            wait_until(captures, "a capture")
            capture.leave()
            wait_until(lambda: not captures(), "the end of it")
            capture.check()  # it did not fail
        finally:
            capture.stop()
    assert not capture.running


def test_ranges_of_keys_on_both_sides_of_zero() -> None:
    for low, high in ((-1, 1), (-(2**63), 2**63 - 1), (0, 0), (-7, -1)):
        ranges = KeyRanges.over("id", Sql("id"), low, high, rows=3)
        assert 1 <= len(ranges.numbers) <= 2
        assert {low >> ranges.shift, high >> ranges.shift} <= set(ranges.numbers)
