"""Rows go from tasks to the target: the driver never has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import Replica
from tests.snapshot.taking import take

ROOT = Path(__file__).resolve().parents[3]
ROWS = 8000
DOC = "(SELECT string_agg(md5((n * 50 + m)::text), '') FROM generate_series(1, 50) m)"


@pytest.mark.slow
def test_nothing_is_collected_on_the_driver(replica: Replica, tmp_path: Path) -> None:
    """Of 12 MB that no compression makes small, with a limit of one."""
    replica.captured.run(
        "CREATE TABLE docs (id int PRIMARY KEY, doc text);\n"
        "CREATE TABLE bag (n int, doc text);\n"
        "ALTER TABLE bag REPLICA IDENTITY FULL;\n"
        "CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);\n"
        "INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');\n"
    )
    replica.follow()
    replica.captured.run(
        f"INSERT INTO docs SELECT n, {DOC} FROM generate_series(1, {ROWS}) n;\n"
        f"INSERT INTO bag SELECT * FROM docs;\n"
        "UPDATE docs SET doc = reverse(doc);\n"
        "UPDATE bag SET n = n + 1 WHERE n < 100;\n"
        # In sets that does not do: everything is staged again, in the source's order.
        "UPDATE seats SET person = NULL WHERE id = 1;\n"
        "UPDATE seats SET person = 'ann' WHERE id = 2;\n"
        "UPDATE seats SET person = 'bob' WHERE id = 1;\n"
    )
    assert "stage_lines" in with_a_limit(replica, tmp_path)
    replica.check_equal("docs", "bag", "seats")


@pytest.mark.slow
def test_nor_what_tasks_read_from_files(replica: Replica, tmp_path: Path) -> None:
    replica.captured.run("CREATE TABLE docs (id int PRIMARY KEY, doc text);\n")
    replica.begin_stream()
    replica.captured.run(
        f"INSERT INTO docs SELECT n, {DOC} FROM generate_series(1, {ROWS}) n;\n"
        "UPDATE docs SET doc = reverse(doc);\n"
    )
    ways = with_a_limit(replica, tmp_path)
    assert "stage_from_files" in ways
    assert "stage_lines" not in ways
    replica.check_equal("docs")


@pytest.mark.slow
def test_nor_rows_of_a_snapshot(
    spark: SparkSession,
    database: Database,
    target: Database,
    make_captured: MakeCaptured,
    tmp_path: Path,
) -> None:
    for each in (database, target):
        each.execute("CREATE TABLE docs (id int PRIMARY KEY, doc text)")
    database.execute(f"INSERT INTO docs SELECT n, {DOC} FROM generate_series(1, {ROWS}) n")
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    assert "load_rows" in with_a_limit(replica, tmp_path)
    replica.check_equal("docs")


def with_a_limit(replica: Replica, directory: Path) -> list[str]:
    """Follow in a process whose driver takes next to nothing; the ways that rows took."""
    replica.captured.capture()
    config = directory / "config.json"
    sink = {"type": "postgres", "url": replica.target.url}
    settings = {**replica.captured.settings, "pipelines": {"replica": {"sink": sink}}}
    config.write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "tests.sinks.postgres.limited_driver", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "spark.driver.maxResultSize" in done.stdout
    return done.stdout.splitlines()
