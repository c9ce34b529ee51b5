"""A table's changes as typed rows, and its state rebuilt from the log."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StringType

import pgtide
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured
from tests.fixtures.history_rows import HistoryRows

SCRIPT = """CREATE TABLE t (id int PRIMARY KEY, name text, price numeric(10,2), big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT n, 'n' || n, n, repeat('x', 9000) || n FROM generate_series(1, 9) n;
UPDATE t SET price = 5.5 WHERE id = 1;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 3;
ALTER TABLE t RENAME COLUMN name TO title;
ALTER TABLE t ADD COLUMN note text DEFAULT 'a "quoted", note';
UPDATE t SET id = 21, title = 'moved' WHERE id = 20;
"""


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_changes_and_states(spark: SparkSession, captured: Captured, tmp_path: Path) -> None:
    captured.run(SCRIPT)
    captured.capture()
    before = rows_at_source = captured.execute("TABLE t")
    position = captured.log.end
    ((time,),) = captured.execute("SELECT clock_timestamp()")
    log = captured.config.log.path
    frame = pgtide.changes(spark, log, "public.t")
    assert frame.schema["unchanged"].dataType == ArrayType(StringType(), containsNull=False)
    found = frame.orderBy("lsn", "seq").collect()
    assert [row["op"] for row in found] == ["insert"] * 9 + ["update"] * 2 + ["delete", "update"]
    assert found[0]["after"]["title"] == "n1"
    assert found[0]["after"]["note"] == 'a "quoted", note'
    assert found[9]["after"]["price"] == Decimal("5.50")
    assert found[9]["unchanged"] == ["big"]
    assert (found[10]["before"]["id"], found[10]["after"]["id"]) == (2, 20)
    assert found[11]["after"] is None
    assert rows(pgtide.latest(spark, log, "public.t")) == sorted(rows_at_source)

    captured.run("TRUNCATE t;\nINSERT INTO t VALUES (1, 'new', 1, 'b', 'n');\n")
    captured.capture()
    assert rows(pgtide.latest(spark, log, "t")) == sorted(captured.execute("TABLE t"))
    for as_of in (position, time):
        assert rows(pgtide.latest(spark, log, "t", as_of=as_of)) == sorted(before)
    far = pgtide.latest(spark, log, "t", as_of="FFFFFFFF/FFFFFFFF")
    assert far.count() == 1, "behind every number that Spark has"

    streamed = pgtide.changes(spark, log, "public.t", stream=True)
    query = (
        streamed.writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("streamed").count() == 15
    assert isinstance(position, Position)


def test_the_state_is_of_the_relation_that_has_the_name(
    spark: SparkSession, captured: Captured
) -> None:
    """Others had the name before: their rows are not the table's. Changes show dropped ones."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
DROP TABLE t;
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t VALUES (2);
CREATE TABLE orders (id int PRIMARY KEY);
INSERT INTO orders VALUES (10);
CREATE TABLE orders_new (id int PRIMARY KEY);
INSERT INTO orders_new VALUES (11);
ALTER TABLE orders RENAME TO orders_old;
ALTER TABLE orders_new RENAME TO orders;
INSERT INTO orders VALUES (12);
INSERT INTO orders_old VALUES (13);
"""
    )
    captured.capture()
    log = captured.config.log.path
    for table in ("t", "orders", "orders_old"):
        wanted = sorted(captured.execute(f"TABLE {table}"))
        assert rows(pgtide.latest(spark, log, table)) == wanted, table
    assert pgtide.changes(spark, log, "t").count() == 2
    assert pgtide.changes(spark, log, "orders").count() == 2
    assert pgtide.changes(spark, log, "orders_old").count() == 2


@pytest.mark.slow
def test_names_that_others_have_now(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY, x text);
CREATE TABLE dr (id int PRIMARY KEY);
INSERT INTO a VALUES (1);
INSERT INTO b VALUES (2, 'x');
INSERT INTO dr VALUES (3);
"""
    )
    captured.capture()
    then = captured.log.end
    time = captured.execute("SELECT now()::text")[0][0]
    captured.run("ALTER TABLE a RENAME TO c;\nALTER TABLE b RENAME TO a;\n")
    captured.run("ALTER TABLE c RENAME TO b;\nINSERT INTO b VALUES (4);\nDROP TABLE dr;\n")
    captured.capture()
    log = captured.config.log.path
    assert rows(pgtide.latest(spark, log, "a")) == [(2, "x")]
    assert rows(pgtide.latest(spark, log, "b")) == [(1,), (4,)]
    assert pgtide.changes(spark, log, "a").count() == 1
    assert pgtide.changes(spark, log, "b").count() == 2
    for as_of in (then, str(then), time):
        assert rows(pgtide.latest(spark, log, "a", as_of=as_of)) == [(1,)]
        assert rows(pgtide.latest(spark, log, "b", as_of=as_of)) == [(2, "x")]
        assert rows(pgtide.latest(spark, log, "dr", as_of=as_of)) == [(3,)]
    with pytest.raises(pgtide.errors.ConfigError, match="dropped"):
        pgtide.latest(spark, log, "dr")
    assert pgtide.changes(spark, log, "dr").count() == 1, "what happened to it is still told"
    for read in (pgtide.latest, pgtide.changes):
        with pytest.raises(pgtide.errors.ConfigError, match=r"called public\.b now"):
            read(spark, log, "c")
    with pytest.raises(pgtide.errors.ConfigError, match="did not exist"):
        pgtide.latest(spark, log, "a", as_of=Position(Lsn(1)))


@pytest.mark.parametrize("as_of", ["garbage", "1/zz", 5, "2024-13-01"])
def test_moments_that_are_none(spark: SparkSession, captured: Captured, as_of: Any) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    captured.capture()
    with pytest.raises(pgtide.errors.ConfigError, match="as_of"):
        pgtide.latest(spark, captured.config.log.path, "t", as_of=as_of)
    policy: Any = "ignore"
    for read in (pgtide.latest, pgtide.changes):
        with pytest.raises(pgtide.errors.ConfigError, match="on_unrepresentable"):
            read(spark, captured.config.log.path, "t", on_unrepresentable=policy)


@pytest.mark.slow
def test_a_partition_may_number_its_columns_otherwise(
    spark: SparkSession, captured: Captured
) -> None:
    """What an update did not send is completed in the column of that name, or the next one."""
    captured.run(
        """CREATE TABLE p (id int PRIMARY KEY, n int, big text) PARTITION BY RANGE (id);
CREATE TABLE p1 (gone int, big text, id int NOT NULL, n int);
ALTER TABLE p1 DROP gone;
ALTER TABLE p1 ALTER big SET STORAGE EXTERNAL;
ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (9);
INSERT INTO p VALUES (1, 1, repeat('x', 9000));
UPDATE p SET n = 2;
"""
    )
    captured.capture()
    found = pgtide.latest(spark, captured.config.log.path, "p")
    assert rows(found) == captured.execute("TABLE p")
    captured.run("ALTER TABLE p RENAME n TO m;\nALTER TABLE p ADD n text;\n")
    captured.run("INSERT INTO p VALUES (2, 3, 'y', 'new');\n")
    captured.capture()
    found = pgtide.latest(spark, captured.config.log.path, "p")
    assert rows(found) == sorted(captured.execute("TABLE p"))


def test_what_cannot_be_read_is_refused(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (day date);\n")
    captured.capture()
    with pytest.raises(pgtide.errors.ConfigError, match="no table"):
        pgtide.changes(spark, captured.config.log.path, "public.nothing")
    for names in ([], ["t", "public.t"]):
        with pytest.raises(pgtide.errors.ConfigError, match="none, or one of them twice"):
            pgtide.changes(spark, captured.config.log.path, names)
    with pytest.raises(pgtide.errors.ConfigError, match="without a key"):
        pgtide.latest(spark, captured.config.log.path, "public.t")
    for setting, value, said in (
        ("spark.sql.files.ignoreMissingFiles", "TRUE", "ignoreMissingFiles is refused"),
        ("spark.sql.catalog.spark_catalog", "somebody.Else", "the Spark session has no Delta"),
    ):
        other = spark.newSession()
        other.conf.set(setting, value)
        for read in (pgtide.changes, pgtide.latest):
            with pytest.raises(pgtide.errors.ConfigError, match=said):
                read(other, captured.config.log.path, "public.t")


def test_several_tables_in_one_pass(spark: SparkSession, captured: Captured) -> None:
    """Every table is what it is when read by itself, and NULL in the rows of the others."""
    captured.run(SCRIPT + 'CREATE TABLE "U.x" (id bigint PRIMARY KEY, at timestamptz);\n')
    captured.run("INSERT INTO \"U.x\" VALUES (7, '2020-02-29 12:00+00');\nTRUNCATE t;\n")
    captured.capture()
    log = captured.config.log.path
    both = pgtide.changes(spark, log, ['public."U.x"', "t"])
    assert both.columns[5:] == ["table", "public.U.x", "public.t"]
    for name, column in (('public."U.x"', "public.U.x"), ("public.t", "public.t")):
        mine = both.filter(both["table"] == column)
        alone = pgtide.changes(spark, log, name)
        shown = mine.select("op", "lsn", "seq", "xid", "committed_at", f"`{column}`.*")
        assert shown.schema == alone.schema
        assert sorted(shown.toJSON().collect()) == sorted(alone.toJSON().collect())
    strangers = both.filter("table != 'public.t' AND `public.t` IS NOT NULL")
    assert strangers.isEmpty()
    assert both.count() == 15


def test_a_stream_ends_when_its_columns_change(
    spark: SparkSession, captured: Captured, tmp_path: Path
) -> None:
    """Rows of columns that the query does not know must not be left out silently."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nCREATE TABLE other (id int PRIMARY KEY);\n")
    captured.run("INSERT INTO t VALUES (1);\nINSERT INTO other VALUES (1);\n")
    captured.capture()
    tables = ["other", "t"]
    frame = pgtide.changes(spark, captured.config.log.path, tables, stream=True)
    captured.run("ALTER TABLE t ADD COLUMN b int;\nINSERT INTO t VALUES (2, 2);\n")
    captured.capture()

    def start(frame: DataFrame) -> None:
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="columns changed; start the query again"):
        start(frame)
    start(pgtide.changes(spark, captured.config.log.path, tables, stream=True))


def test_reads_and_sweeps(spark: SparkSession, captured: Captured) -> None:
    """Rows that were read are told; those that a sweep found gone are in no state behind it."""
    history = HistoryRows(captured)
    captured.run(
        """CREATE TABLE t (part text, a int, name text, PRIMARY KEY (part, a));
INSERT INTO t VALUES ('x', 1, 'one'), ('y', 1, 'two');
"""
    )
    history.ghosts("t", ["x", "7", "g"], ["x", "8", "g"], ["z", "9", "g"], ["zz", "9", "g"])
    full = captured.log.end
    start = Position(Lsn(history.here() + 1))
    history.sweep("t", start, keys=[["x", "7"], ["x", "1000"]])
    history.sweep("t", start, low="z", high="z")
    captured.run("UPDATE t SET name = 'three' WHERE part = 'y'")
    log = captured.config.log.path
    captured.capture()
    partly = rows(pgtide.latest(spark, log, "t"))
    captured.run("ALTER TABLE t RENAME a TO number")
    captured.capture()
    assert rows(pgtide.latest(spark, log, "t")) == partly
    assert [row[:2] for row in partly] == [("x", 1), ("x", 8), ("y", 1), ("zz", 9)]
    history.replace("t")
    captured.run("INSERT INTO t VALUES ('zz', 9, 'back')")
    captured.capture()
    assert rows(pgtide.latest(spark, log, "t")) == sorted(captured.execute("TABLE t"))
    assert len(rows(pgtide.latest(spark, log, "t", as_of=full))) == 6
    ops = ["insert"] * 2 + ["read"] * 4 + ["update"] + ["read"] * 2 + ["insert"]
    by_format = spark.read.format("pgtide").option("log", log).option("table", "t").load()
    for frame in (pgtide.changes(spark, log, "t"), by_format):
        assert [row["op"] for row in frame.orderBy("lsn", "seq").collect()] == ops
    told = [(event.op, event.payload) for event in captured.events("sweep")]
    assert len(told) == 3
    assert told[0][1] is not None
    assert told[0][1]["keys"] == [["x", "7"], ["x", "1000"]]


def test_the_state_of_a_table_whose_identity_changed(
    spark: SparkSession, captured: Captured
) -> None:
    """An old row holds what the new one was not sent only where the identity says so."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int, doc text);
ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 0, repeat('a', 3000)), (2, 0, repeat('b', 3000));
UPDATE t SET n = 1;
ALTER TABLE t REPLICA IDENTITY FULL;
UPDATE t SET n = 2 WHERE id = 1;
"""
    )
    captured.capture()
    rows = pgtide.latest(spark, captured.config.log.path, "t").collect()
    assert sorted((row.n, row.doc) for row in rows) == [(1, "b" * 3000), (2, "a" * 3000)]
