"""History into mirrors: rows from before the log, ghosts, and DDL that changes rows by itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from pgtide.pipeline.running import PipelineRun
from tests.capture.test_refresh import refresh, wait_for
from tests.fixtures.capture import MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.pipeline.test_mirror import check_equal, lake_config, run_pipeline

ROWS = 4000


@contextmanager
def writing(database: Database) -> Iterator[None]:
    """Somebody changes the table all the time, large values left alone as a rule."""
    stop = threading.Event()
    dice = random.Random(7)

    def write() -> None:
        with database.connect() as connection:
            for new in range(ROWS + 1, 10 * ROWS):
                if stop.is_set():
                    return
                old = dice.randint(1, ROWS)
                statement = dice.choice(
                    [
                        f"UPDATE t SET n = n + 1 WHERE id = {old}",
                        f"UPDATE t SET id = {new} WHERE id = {old}",
                        f"UPDATE t SET id = -{new} WHERE id = {old}",
                        f"DELETE FROM t WHERE id = {old}",
                        f"INSERT INTO t VALUES ({new}, 0, 'new')",
                        f"UPDATE t SET doc = repeat(md5('{new}'), 90) WHERE id = {old}",
                    ]
                )
                connection.execute(statement.encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def make_table(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, doc text)")
    database.execute("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    database.execute(
        f"INSERT INTO t SELECT i, 0, repeat(md5(i::text), 90) FROM generate_series(1, {ROWS}) i"
    )


def test_history_comes_while_everything_changes(
    spark: SparkSession, database: Database, make_captured: MakeCaptured
) -> None:
    make_table(database)
    captured = make_captured(snapshot="incremental")
    config = lake_config(captured)
    with writing(database), captured.capturing() as running:
        # Slowly, so that the pipeline meets changes of rows that it has not got yet.
        for _ in range(2):
            PipelineRun(spark, config, "lake").run(until_current=True)
        wait_for(captured)
        running.wait(flushed(database))
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t")


@pytest.mark.slow
def test_ghosts_go_and_damage_is_mended(
    spark: SparkSession, database: Database, make_captured: MakeCaptured
) -> None:
    make_table(database)
    captured = make_captured(snapshot="incremental")
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t")
    path = str(captured.directory / "lake" / "public" / "t")
    lake = DeltaTable.forPath(spark, path)
    ghosts = spark.sql("SELECT 90001 AS id, 1 AS n, 'ghost' AS doc, 5L AS a, 0L AS b")
    ghosts = ghosts.withColumnsRenamed({"a": "_pgtide_lsn", "b": "_pgtide_seq"})
    ghosts.write.format("delta").mode("append").save(path)
    lake.delete("id = 17")
    lake.update("id = 18", {"n": "-1"})
    refresh(captured, replace=True)
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t")
    database.execute("ALTER TABLE t ADD COLUMN u text DEFAULT md5(random()::text)")
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t")
