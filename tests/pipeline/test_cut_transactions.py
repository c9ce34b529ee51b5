"""A transaction larger than a batch is cut anywhere: what its commands do stays the same."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.log.storage import Storage
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, rows, table

NAME = "cut"
# What the log tells again of a column (its default for older rows) may no longer be true of them,
# and a table has other names and columns between two commands than before and after all of them.
TRANSACTION = """CREATE TABLE t (id int PRIMARY KEY, a int);
INSERT INTO t VALUES (1, 1), (2, 2);
BEGIN;
CREATE TABLE made (id int PRIMARY KEY);
INSERT INTO made VALUES (1);
ALTER TABLE made ADD b int DEFAULT 5;
ALTER TABLE t ADD b int DEFAULT 5;
UPDATE t SET b = 7 WHERE id = 1;
ALTER TABLE t RENAME b TO c;
ALTER TABLE t RENAME TO u;
UPDATE u SET c = 8 WHERE id = 2;
ALTER TABLE u ADD d text DEFAULT 'x';
INSERT INTO u VALUES (3, 3, 3, 'y');
ALTER TABLE u DROP a;
INSERT INTO u VALUES (4, 4, 'z');
COMMIT;
"""
VERSIONS = [
    (1, 5, None, False),
    (1, 7, "x", True),
    (2, 5, None, False),
    (2, 8, "x", True),
    (3, 3, "y", True),
    (4, 4, "z", True),
]
HISTORY = [
    ("insert", 1, None, None),
    ("insert", 2, None, None),
    ("insert", 3, 3, "y"),
    ("insert", 4, 4, "z"),
    ("update", 1, 7, None),
    ("update", 2, 8, None),
]


def deliver_row_by_row(spark: SparkSession, captured: Captured, mode: str) -> int:
    """Deliver the log in batches of one row each; how many there were."""
    captured.capture()
    sink = {"type": "delta", "path": str(captured.directory / mode), "mode": mode}
    config = Config.model_validate({**captured.settings, "pipelines": {NAME: {"sink": sink}}})
    size = sum(file.size for file in captured.log.snapshot().files)
    tiny = config.pipelines[NAME].model_copy(update={"batch": size // (4 * len(captured.rows()))})
    config = config.model_copy(update={"pipelines": {NAME: tiny}})
    return PipelineRun(spark, config, NAME).run(until_current=True).batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "columns", "wanted"),
    [
        ("mirror", "id c d", [(1, 7, "x"), (2, 8, "x"), (3, 3, "y"), (4, 4, "z")]),
        ("scd2", "id c d is_current", VERSIONS),
        ("history", "_pgtide_op id c d", HISTORY),
    ],
)
def test_commands_of_a_transaction_in_parts(
    spark: SparkSession, captured: Captured, mode: str, columns: str, wanted: list[Any]
) -> None:
    captured.run(TRANSACTION)
    batches = deliver_row_by_row(spark, captured, mode)
    assert batches == len(captured.rows())
    found = table(spark, captured, mode, "u").select(*columns.split()).collect()
    assert sorted((tuple(row) for row in found), key=repr) == wanted
    made = table(spark, captured, mode, "made").select("id", "b").collect()
    assert [tuple(row) for row in made] == [(1, None if mode == "history" else 5)]


@pytest.mark.slow
def test_columns_that_change_names_and_change_back(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, a int);
BEGIN;
INSERT INTO t VALUES (1, 1);
ALTER TABLE t RENAME a TO b;
INSERT INTO t VALUES (2, 2);
ALTER TABLE t RENAME b TO a;
INSERT INTO t VALUES (3, 3);
ALTER TABLE t RENAME a TO b;
INSERT INTO t VALUES (4, 4);
COMMIT;
"""
    )
    deliver(spark, captured, "mirror")
    assert rows(table(spark, captured, "mirror", "t"), "id", "b") == [(n, n) for n in range(1, 5)]


def test_what_commands_told_before(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """BEGIN;
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE t (id int PRIMARY KEY, a int);
INSERT INTO t VALUES (1, 1);
ALTER TABLE t ADD b int DEFAULT 5;
ALTER TABLE t RENAME TO u;
COMMIT;
ALTER TABLE u RENAME TO v;
"""
    )
    captured.capture()
    *_, renamed, _ = captured.events("ddl")
    (oid,) = {shape.oid for shape in captured.log.shapes().values() if shape.table == "u"}
    frames = LogFrames(spark, Storage(captured.config.log.path))
    version = captured.log.snapshot().version
    told = frames.told_before(version, renamed.position, [oid])
    assert [(one.item["name"], len(one.item["columns"])) for one in told] == [("t", 2), ("t", 3)]
    assert [column["missing"] for column in told[-1].item["columns"]] == [None, None, "{5}"]
    assert told[0].at < told[1].at < renamed.position
