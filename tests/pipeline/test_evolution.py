"""Mirrors follow what DDL does to their tables."""

from __future__ import annotations

import threading

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType

import pgtide
from pgtide.errors import PipelineError, TargetError, TargetUnavailable, Unrepresentable
from pgtide.log.storage import Storage
from pgtide.pipeline.parallel import Writers
from pgtide.pipeline.running import PipelineRun
from pgtide.sinks.delta import lake
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until
from tests.pipeline.test_mirror import lake_config, mirror, run_pipeline
from tests.sinks.lakes import deliver, rows, table


def test_types_and_names_change(spark: SparkSession, captured: Captured) -> None:
    public = captured.directory / "lake" / "public"
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int, v text);
INSERT INTO t VALUES (1, 1, '10'), (2, 2, NULL);
"""
    )
    run_pipeline(spark, captured)
    captured.run(
        """ALTER TABLE t ALTER n TYPE bigint;
INSERT INTO t VALUES (3, 5000000000, '30');
ALTER TABLE t ALTER v TYPE int USING v::int;
INSERT INTO t VALUES (4, 4, 40);
ALTER TABLE t RENAME TO renamed;
INSERT INTO renamed VALUES (5, 5, 50);
"""
    )
    run_pipeline(spark, captured)
    assert not (public / "t").exists()
    frame = spark.read.format("delta").load(str(public / "renamed"))
    assert isinstance(frame.schema["n"].dataType, LongType)
    assert isinstance(frame.schema["v"].dataType, IntegerType)
    # What was converted without an event was read again; the old values are not lost.
    rows = frame.orderBy("id").select("id", "n", "v", "v__string").collect()
    assert [tuple(row) for row in rows] == [
        (1, 1, 10, "10"),
        (2, 2, None, None),
        (3, 5000000000, 30, "30"),
        (4, 4, 40, None),
        (5, 5, 50, None),
    ]
    captured.run("DROP TABLE renamed;\nCREATE TABLE renamed (id int PRIMARY KEY, other text);\n")
    captured.run("INSERT INTO renamed VALUES (1, 'new');\n")
    run_pipeline(spark, captured)
    again = spark.read.format("delta").load(str(public / "renamed"))
    assert [tuple(row) for row in again.select("id", "other").collect()] == [(1, "new")]
    assert "n" not in again.columns
    captured.run("ALTER TABLE renamed ALTER id TYPE text USING 'k' || id;\n")
    run_pipeline(spark, captured)
    found = spark.read.format("delta").load(str(public / "renamed")).select("id", "other").collect()
    assert [tuple(row) for row in found] == [("k1", "new")], "the old key's row is gone"


def test_a_rename_without_rows_is_followed_at_once(spark: SparkSession, captured: Captured) -> None:
    public = captured.directory / "lake" / "public"
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    config = lake_config(captured)
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            PipelineRun(spark, config, "lake", stop=stop).run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: failed or (public / "t" / "_delta_log").exists(), "the mirror", 120)
        captured.run("ALTER TABLE t RENAME TO other;\n")
        captured.capture()
        wait_until(lambda: failed or (public / "other").exists(), "the new name", 120)
    finally:
        stop.set()
        thread.join()
    assert failed == []


def test_defaults_are_filled_in_once(spark: SparkSession, captured: Captured) -> None:
    """Commands that leave the columns alone name their defaults again."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1), (2), (3);\n")
    run_pipeline(spark, captured)
    captured.run("ALTER TABLE t ADD b int DEFAULT 5;\nUPDATE t SET b = 7 WHERE id = 1;\n")
    captured.run("ALTER TABLE t ALTER b SET NOT NULL;\n")  # another shape of the same columns
    run_pipeline(spark, captured)
    captured.run("CREATE INDEX ON t (b);\nCOMMENT ON TABLE t IS 'x';\n")
    captured.run(
        "BEGIN;\nALTER TABLE t ADD c int DEFAULT 1;\nUPDATE t SET c = 2 WHERE id = 2;\n"
        "CREATE INDEX ON t (c);\nCOMMIT;\n"
    )
    run_pipeline(spark, captured)
    assert mirror(spark, captured, "t") == [(1, 7, 1), (2, 5, 2), (3, 5, 1)]


def test_a_dropped_column_stays(spark: SparkSession, captured: Captured) -> None:
    """As it was, if the sink is told so; also when another gets its name."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, b int);\nINSERT INTO t VALUES (1, 7);\n")
    captured.run("ALTER TABLE t DROP b;\nINSERT INTO t VALUES (2);\n")
    captured.run("ALTER TABLE t ADD b text;\nINSERT INTO t VALUES (3, 'x');\n")
    path = captured.directory / "lake"
    sink = {"type": "delta", "path": str(path), "dropped_columns": "keep"}
    run_pipeline(spark, captured, sink=sink)
    frame = spark.read.format("delta").load(str(path / "public" / "t"))
    rows = frame.orderBy("id").select("id", "b", "b__int").collect()
    assert [tuple(row) for row in rows] == [(1, None, 7), (2, None, None), (3, "x", None)]
    captured.run("INSERT INTO t VALUES (4);\n")
    with pytest.raises(TargetError, match="not what the pipeline would make it"):
        run_pipeline(spark, captured, sink={**sink, "mode": "history"})


@pytest.mark.slow
def test_keys_that_no_type_holds(spark: SparkSession, captured: Captured) -> None:
    """Two rows must not become one because the type has no value for either key."""
    captured.run("CREATE TABLE t (id int, till date, v int, PRIMARY KEY (id, till));\n")
    captured.run("INSERT INTO t VALUES (1, 'infinity', 1), (1, '-infinity', 2);\n")
    with pytest.raises(Unrepresentable, match="does not fit"):
        run_pipeline(spark, captured)
    captured.capture()
    with pytest.raises(PySparkException, match=r"unrepresentable value in public\.t\.till"):
        pgtide.latest(spark, captured.config.log.path, "t").collect()
    sink = {"type": "delta", "path": str(captured.directory / "texts")}
    run_pipeline(spark, captured, sink=sink, on_unrepresentable="text")
    captured.run("UPDATE t SET v = 3 WHERE v = 2;\nDELETE FROM t WHERE v = 1;\n")
    captured.run("ALTER TABLE t ADD day date DEFAULT 'infinity';\n")
    run_pipeline(spark, captured, sink=sink, on_unrepresentable="text")
    texts = spark.read.format("delta").load(str(captured.directory / "texts" / "public" / "t"))
    rows = texts.select("id", "till", "v", "day").collect()
    assert [tuple(row) for row in rows] == [(1, "-infinity", 3, "infinity")]


def test_half_a_table_is_refused(spark: SparkSession, captured: Captured) -> None:
    """A table takes the name of a selected one: its earlier rows were passed over."""
    for name in ("t", "t_new"):
        captured.run(f"CREATE TABLE {name} (id int PRIMARY KEY);\nINSERT INTO {name} VALUES (1);\n")
    run_pipeline(spark, captured, tables=["public.t"])
    captured.run("ALTER TABLE t RENAME TO t_old;\nALTER TABLE t_new RENAME TO t;\n")
    with pytest.raises(PipelineError, match="renamed into the pipeline's selection"):
        run_pipeline(spark, captured, tables=["public.t"])


@pytest.mark.slow
def test_a_table_that_another_writer_has_half_moved(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store a table moves bit by bit. One that had its name once is not held up."""
    captured.run("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    deliver(spark, captured, "mirror")
    again = "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (2)"
    captured.run(f"ALTER TABLE a RENAME TO b; {again}")
    deliver(spark, captured, "mirror")
    captured.run("ALTER TABLE a RENAME TO c; INSERT INTO b VALUES (3)")

    def half(_: SparkSession, storage: Storage, place: str, to: str) -> None:
        assert (place, to) == ("public/a", "public/c")
        assert storage.local is not None
        log = storage.local / place / "_delta_log"
        *earlier, newest = sorted(log.glob("*.json"))
        assert earlier
        for file in {*log.iterdir()} - {newest}:
            file.unlink()
        raise TargetUnavailable("the storage of a target failed")

    monkeypatch.setattr(lake, "move", half)
    monkeypatch.setattr(Writers.__init__, "__defaults__", (1,))  # one after the other, a first
    with pytest.raises(TargetUnavailable, match="storage of a target"):
        deliver(spark, captured, "mirror")
    assert rows(table(spark, captured, "mirror", "b"), "id") == [(1,), (3,)]
