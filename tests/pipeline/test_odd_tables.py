"""Tables that are legal at the source, and odd: mirrors are equal to them nevertheless."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import TargetError
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.spark.changes import changes, latest
from tests.fixtures.capture import Captured

TABLES = """CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, v text);
ALTER TABLE deferred REPLICA IDENTITY FULL;
CREATE TABLE floats (id float8 PRIMARY KEY, v int);
CREATE TABLE words (id int PRIMARY KEY, "null" int, "true" text, "false" int);
CREATE TABLE arrays (id int[] PRIMARY KEY, v int);
CREATE TABLE nothing ();
ALTER TABLE nothing REPLICA IDENTITY FULL;
CREATE TABLE times (id int PRIMARY KEY, day date);
CREATE SCHEMA _pgtide;
CREATE TABLE _pgtide.quarantine (id int PRIMARY KEY, day date);
"""
BATCHES = (
    """INSERT INTO deferred VALUES (1, 'one'), (2, 'two'), (3, 'three');
INSERT INTO floats VALUES ('NaN', 1), (1, 1);
INSERT INTO words VALUES (1, 1, 'a', 1), (2, 2, 'b', 2);
INSERT INTO arrays VALUES ('{1,2}', 1), ('{2}', 1);
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO times VALUES (1, '2024-02-29');
INSERT INTO _pgtide.quarantine VALUES (1, 'infinity'), (2, NULL);
""",
    """UPDATE deferred SET id = id + 1;
UPDATE floats SET v = 2;
UPDATE words SET "null" = 3, "true" = 'c' WHERE id = 1;
UPDATE arrays SET v = 2 WHERE id = '{2}';
DELETE FROM nothing WHERE ctid = (SELECT min(ctid) FROM nothing);
ALTER TABLE times ADD COLUMN at timestamp;
ALTER TABLE times ALTER day TYPE timestamp;
INSERT INTO times VALUES (2, '2024-02-29 01:00', '2024-02-29 02:00');
UPDATE _pgtide.quarantine SET id = 3 WHERE id = 2;
""",
    """UPDATE deferred SET id = 10 - id;
UPDATE floats SET v = 3 WHERE id = 'NaN';
DELETE FROM words WHERE id = 2;
DELETE FROM arrays WHERE id = '{2}';
DROP TABLE _pgtide.quarantine;
DROP TABLE arrays;
CREATE TABLE arrays (id timestamp PRIMARY KEY);
INSERT INTO arrays VALUES ('2024-02-29 01:00');
""",
)
NAMES = ("deferred", "floats", "words", "arrays", "nothing", "times")


def run(spark: SparkSession, captured: Captured, **pipeline: Any) -> State:
    captured.capture()
    config = Config.model_validate({**captured.settings, "pipelines": {"lake": pipeline}})
    return PipelineRun(spark, config, "lake").run(until_current=True)


def mirror(spark: SparkSession, captured: Captured, schema: str, table: str) -> list[str]:
    path = captured.directory / "lake" / schema / table
    frame = spark.read.format("delta").load(str(path))
    names = [name for name in frame.columns if not name.startswith("_pgtide_")]
    return sorted(str([*row]) for row in frame.select(*(f"`{n}`" for n in names)).collect())


def source(captured: Captured, table: str) -> list[str]:
    if table == "nothing":  # drivers show no rows of no columns
        ((rows,),) = captured.execute(f"SELECT count(*) FROM {table}")
        return ["[]"] * rows
    return sorted(str([*row]) for row in captured.execute(f"TABLE {table}"))


@pytest.mark.slow
def test_mirrors_of_odd_tables(spark: SparkSession, captured: Captured) -> None:
    captured.run(TABLES)
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    for number, batch in enumerate(BATCHES):
        captured.run(batch)
        state = run(spark, captured, sink=sink, on_unrepresentable="null", on_error="park")
        assert not state.parked
        for name in NAMES:
            assert mirror(spark, captured, "public", name) == source(captured, name), number
    kept = mirror(spark, captured, "_pgtide", "quarantine")
    assert [row for row in kept if "'infinity'" in row], "pgtide's own is where it was"
    assert mirror(spark, captured, "~5Fpgtide", "quarantine") == ["[1, None]", "[3, None]"]


@pytest.mark.slow
def test_maps_tell_rows_apart(spark: SparkSession, captured: Captured) -> None:
    """Of a table without a key; hstore is known by its name."""
    one, both = '"a"=>"1"', '"a"=>"1", "b"=>"2"'
    captured.run(f"CREATE TYPE hstore AS ENUM ('{one}', '{both}');\n")
    captured.run("CREATE TABLE t (h hstore, n int);\nALTER TABLE t REPLICA IDENTITY FULL;\n")
    captured.run(f"INSERT INTO t VALUES ('{one}', 1), ('{one}', 1), ('{both}', 1), (NULL, 1);\n")
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    run(spark, captured, sink=sink)
    captured.run("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t);\n")
    captured.run(f"UPDATE t SET n = 2 WHERE h = '{both}';\n")
    run(spark, captured, sink=sink)
    wanted = ["[None, 1]", "[{'a': '1', 'b': '2'}, 2]", "[{'a': '1'}, 1]"]
    assert mirror(spark, captured, "public", "t") == wanted


@pytest.mark.slow
def test_views_follow_their_tables(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE SCHEMA s;\nCREATE TABLE s.a_b (id int PRIMARY KEY);")
    captured.run("CREATE SCHEMA s_a;\nCREATE TABLE s_a.b (id int PRIMARY KEY);")
    captured.run("INSERT INTO s.a_b VALUES (1);\n")
    name = captured.database.name
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "views": name}
    run(spark, captured, sink=sink)
    captured.run("ALTER TABLE s.a_b RENAME id TO number;\nALTER TABLE s.a_b ADD at timestamp;\n")
    captured.run("ALTER TABLE s.a_b ALTER number TYPE bigint;\n")
    captured.run("INSERT INTO s.a_b VALUES (1::bigint << 40);\n")
    run(spark, captured, sink=sink)
    shown = spark.table(f"`{name}`.s_a_b")
    assert shown.columns == ["number", "at"]
    assert sorted(row["number"] for row in shown.collect()) == [1, 1 << 40]
    captured.run("INSERT INTO s_a.b VALUES (2);\n")
    with pytest.raises(TargetError, match=r"the view .*\.s_a_b shows"):
        run(spark, captured, sink=sink)
    assert spark.table(f"`{name}`.s_a_b").columns == ["number", "at"]
    shutil.rmtree(captured.directory / "lake" / "s")
    run(spark, captured, sink=sink)
    assert [row["id"] for row in spark.table(f"`{name}`.s_a_b").collect()] == [2]


@pytest.mark.slow
def test_a_column_that_partitions_get_with_a_default(
    spark: SparkSession, captured: Captured
) -> None:
    """Postgres keeps what older rows hold with each partition, not with the partitioned table."""
    captured.run(
        """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 (gone int, v text, id int NOT NULL);
ALTER TABLE p1 DROP gone;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (9) TO (99) PARTITION BY RANGE (id);
CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (9) TO (99);
INSERT INTO p VALUES (1, 'a'), (10, 'b');
"""
    )
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    run(spark, captured, sink=sink)
    captured.run("ALTER TABLE p ADD w text DEFAULT 'a \"q\", b', ADD at date DEFAULT now();\n")
    captured.run("INSERT INTO p VALUES (2, 'c', NULL, NULL);\nUPDATE p SET v = 'd' WHERE id = 1;")
    run(spark, captured, sink=sink)
    assert mirror(spark, captured, "public", "p") == source(captured, "p")
    found = latest(spark, captured.config.log.path, "p").collect()
    assert sorted(str([*row]) for row in found) == source(captured, "p")
    inserted = changes(spark, captured.config.log.path, "p").filter("op = 'insert'").collect()
    assert [row["after"]["w"] for row in inserted].count('a "q", b') == 2


@pytest.mark.slow
def test_partitions_that_are_dropped(spark: SparkSession, captured: Captured) -> None:
    """The rows of a partition leave the table with it, also those of the same transaction."""
    for table, key in (("p", "PRIMARY KEY (id)"), ("bag", "CHECK (id > 0)")):
        captured.run(f"CREATE TABLE {table} (id int, v text, {key}) PARTITION BY RANGE (id);\n")
        for name, low, high in (("1", 0, 9), ("2", 9, 99)):
            bounds = f"FOR VALUES FROM ({low}) TO ({high})"
            captured.run(f"CREATE TABLE {table}{name} PARTITION OF {table} {bounds};\n")
        captured.run(f"INSERT INTO {table} VALUES (1, 'a'), (10, 'b'), (10 + 1, 'b');\n")
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    run(spark, captured, sink=sink)
    captured.execute("UPDATE p SET v = 'c'; DROP TABLE p1; INSERT INTO p VALUES (12, 'd')")
    captured.run("INSERT INTO bag VALUES (1, 'a'), (12, 'd');\nDROP TABLE bag1;\n")
    for _ in range(2):
        run(spark, captured, sink=sink)
        for table in ("p", "bag"):
            assert mirror(spark, captured, "public", table) == source(captured, table)
        shutil.rmtree(captured.directory / "log" / "pipelines")
    found = latest(spark, captured.config.log.path, "p").collect()
    assert sorted(str([*row]) for row in found) == source(captured, "p")


@pytest.mark.slow
def test_a_table_that_became_a_partition(spark: SparkSession, captured: Captured) -> None:
    """Another takes its name, and it comes back as a table under its own."""
    captured.run(
        """CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE stage (id int PRIMARY KEY, v text);
INSERT INTO stage VALUES (1, 'a'), (2, 'b');
"""
    )
    sink = {"type": "delta", "path": str(captured.directory / "lake")}
    run(spark, captured, sink=sink)
    captured.run(
        """ALTER TABLE p ATTACH PARTITION stage FOR VALUES FROM (0) TO (10);
ALTER TABLE stage RENAME TO p1;
CREATE TABLE stage (id int PRIMARY KEY, v text);
INSERT INTO stage VALUES (11, 'c');
"""
    )
    run(spark, captured, sink=sink)
    assert mirror(spark, captured, "public", "stage") == source(captured, "stage")
    captured.run("ALTER TABLE p DETACH PARTITION p1;\nUPDATE p1 SET v = 'd' WHERE id = 1;\n")
    captured.capture()
    for _ in range(2):
        run(spark, captured, sink=sink)
        for table in ("p", "p1", "stage"):
            assert mirror(spark, captured, "public", table) == source(captured, table)
        shutil.rmtree(captured.directory / "log" / "pipelines")
