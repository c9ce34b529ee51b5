"""The example's pivot rows and its answers."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy

import pytest
from pyspark.sql import SparkSession

from examples.holding_pivot import holding_pivot as example
from pgtide.capture.engine import Capture
from pgtide.cli.init import begin_log
from pgtide.config.loading import load
from pgtide.pipeline.running import PipelineRun
from pgtide.postgres.setup import init
from tests.fixtures.databases import Database

ROWS = [
    # holding_id, user_id, change_field, old_value, new_value, crud_type
    (1000, 1, "holding_stock", None, "VFIAX", "c"),
    (1000, 1, "holding_quantity", None, "10", "c"),
    (1001, 2, "holding_stock", None, "SP500", "c"),
    (1001, 2, "holding_quantity", None, "1", "c"),
    (1002, 3, "holding_stock", None, "SP500", "c"),
    (1002, 3, "holding_quantity", None, "1", "c"),
    (1000, 1, "holding_quantity", "10", "100", "u"),
    (1002, 3, "holding_stock", "SP500", None, "d"),
    (1002, 3, "holding_quantity", "1", None, "d"),
    (1001, 2, "holding_stock", "SP500", None, "d"),
    (1001, 2, "holding_quantity", "1", None, "d"),
    (1003, 3, "holding_stock", None, "VTSAX", "c"),
    (1003, 3, "holding_quantity", None, "100", "c"),
    (1003, 3, "holding_quantity", "100", "10", "u"),
]
COLUMNS = [
    "holding_id",
    "user_id",
    "change_field",
    "old_value",
    "new_value",
    "datetime_created",
    "datetime_updated",
    "datetime_deleted",
    "datetime_inserted",
    "crud_type",
]
TIMES = {"c": "datetime_created", "u": "datetime_updated", "d": "datetime_deleted"}


def test_rows_and_answers(spark: SparkSession, database: Database, tmp_path: Path) -> None:
    copy(example.HERE / "pgtide.yaml", tmp_path)
    url = f"{database.url}&options=-ctimezone%3DUTC"
    config = load(tmp_path / "pgtide.yaml", {"DATABASE_URL": url})
    result = init(config)
    assert result.consistent_point is not None
    begin_log(config, result, result.consistent_point)
    first = datetime.now(UTC) - timedelta(minutes=1)
    with database.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for statement in example.statements():
            connection.execute(statement.encode())
    Capture(config).run(until_current=True)
    PipelineRun(spark, config, "olap").run(until_current=True)
    last = datetime.now(UTC) + timedelta(minutes=1)

    pivot = spark.read.format("delta").load(str(tmp_path / example.PIVOT))
    assert pivot.columns == COLUMNS
    rows = pivot.collect()
    found = [(*row[:5], row["crud_type"]) for row in rows]
    assert sorted(found, key=str) == sorted(ROWS, key=str)
    for row in rows:
        times = {name for name in TIMES.values() if row[name] is not None}
        assert times == {TIMES[row["crud_type"]]}
        for name in (*times, "datetime_inserted"):
            assert first <= row[name].astimezone(UTC) <= last

    assert [example.stock_changes(pivot, user) for user in (1, 2, 3)] == [0, 1, 1]
    assert [example.quantity_changes(pivot, user) for user in (1, 2, 3)] == [1, 0, 1]
    assert example.most_sold(pivot, first, last) == "SP500"
    assert example.most_sold(pivot, last, last + timedelta(days=1)) is None


@pytest.mark.slow
def test_the_script() -> None:
    done = subprocess.run([sys.executable, example.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Stock changes of user 3: 1" in done.stdout
    assert "Most sold stock of all times: SP500" in done.stdout
