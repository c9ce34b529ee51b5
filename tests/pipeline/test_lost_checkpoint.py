"""The log comes again in other batches: what a mirror has already is not done a second time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.steps import Step
from pgtide.position import Lsn, Position
from pgtide.sinks.delta import lake, moving, reached
from pgtide.sinks.delta.lake_table import LakeTable
from tests.fixtures.capture import Captured
from tests.pipeline.test_mirror import check_equal, mirror, run_pipeline
from tests.sinks.lakes import lose_checkpoint

LARGE = """CREATE TABLE t (id int PRIMARY KEY, n int, doc text);
ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
INSERT INTO t VALUES (1, 0, repeat('x', 3000));
"""
UNSENT = "ALTER TABLE t ADD c int;\nUPDATE t SET n = 1;\n"


def deliver_cut(
    spark: SparkSession, captured: Captured, every: int | None, **pipeline: Any
) -> None:
    """Deliver the log, so many of its rows in a batch."""
    captured.capture()
    places = [Position(Lsn(row["lsn"]), row["seq"]) for row in captured.rows()]
    last = Position.end_of(places[-1].lsn)
    cuts = [*places[every - 1 : -1 : every], last] if every else [last]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFrames, "cuts", lambda *_: cuts)
        run_pipeline(spark, captured, **pipeline)


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(UNSENT + "DELETE FROM t;\n", id="delete"),
        pytest.param(UNSENT + "TRUNCATE t;\n", id="truncate"),
        pytest.param(UNSENT + "DELETE FROM t;\nINSERT INTO t VALUES (9, 9, 'x', 9);\n", id="more"),
        pytest.param(
            f"BEGIN;\n{UNSENT}ALTER TABLE t ADD d int;\nDELETE FROM t;\nCOMMIT;\n", id="one"
        ),
        pytest.param("BEGIN;\nUPDATE t SET n = 1;\nTRUNCATE t;\nCOMMIT;\n", id="one truncate"),
    ],
)
def test_a_row_that_is_gone(spark: SparkSession, captured: Captured, commands: str) -> None:
    """An update that lacks a value finds no row to take it from: it was deleted since."""
    captured.run(LARGE + commands)
    for every in (None, 1, 2):
        deliver_cut(spark, captured, every)
        check_equal(spark, captured, "t")
        lose_checkpoint(captured, "lake")


def test_stopped_behind_a_truncate(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are gone, and so is what would be noted of it in a commit of its own."""
    captured.run(LARGE)
    run_pipeline(spark, captured)
    captured.run(UNSENT + "TRUNCATE t;\n")

    def stop(*_: object) -> None:
        raise TargetUnavailable("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(reached, "note", stop)
        with pytest.raises(TargetUnavailable, match="stopped"):
            run_pipeline(spark, captured)
    lose_checkpoint(captured, "lake")
    deliver_cut(spark, captured, 1)
    check_equal(spark, captured, "t")


def test_stopped_before_the_truncate_of_a_partition(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror says that it has the others' rows: it has those that it was about to take too."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int, doc text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20);
ALTER TABLE low ALTER doc SET STORAGE EXTERNAL;
"""
    )
    run_pipeline(spark, captured)
    captured.run("INSERT INTO t VALUES (1, 0, repeat('x', 3000)), (11, 0, 'y');\n")
    captured.run(UNSENT + "TRUNCATE low;\n")
    apply, done = LakeTable._step, list[Step]()

    def first(self: LakeTable, step: Step, later: Sequence[Step]) -> None:
        if done:
            raise TargetUnavailable("stopped")
        apply(self, step, later)
        done.append(step)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "_step", first)
        with pytest.raises(TargetUnavailable, match="stopped"):
            run_pipeline(spark, captured)
    lose_checkpoint(captured, "lake")
    deliver_cut(spark, captured, 1)
    check_equal(spark, captured, "t")


@pytest.mark.parametrize("mode", ["mirror", pytest.param("history", marks=pytest.mark.slow)])
@pytest.mark.parametrize("between", ["INSERT INTO t VALUES (4);", "TRUNCATE t;"])
def test_a_table_waits_for_the_name_of_a_dropped_one(
    spark: SparkSession,
    captured: Captured,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    between: str,
) -> None:
    """What the old one got after the new one was made has nothing to do with the new one."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("CREATE TABLE fresh (id int PRIMARY KEY);\nINSERT INTO fresh VALUES (2);")
    captured.run(f"{between}\nDROP TABLE t;\nALTER TABLE fresh RENAME TO t;")
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "mode": mode}

    def stop(spark: SparkSession, storage: Storage, place: str, to: str) -> None:
        moving.move(spark, storage, place, to)
        if to == "public/t":
            raise TargetUnavailable("stopped behind the rename")

    with monkeypatch.context() as patch:
        patch.setattr(lake, "move", stop)
        with pytest.raises(TargetUnavailable, match="stopped"):
            run_pipeline(spark, captured, sink=sink)
    for every in (None, 1):
        deliver_cut(spark, captured, every, sink=sink)
        assert mirror(spark, captured, "t") == [(2,)]
        lose_checkpoint(captured, "lake")


@pytest.mark.slow
@pytest.mark.parametrize("dropped_tables", ["keep", "drop"])
def test_a_dropped_table_had_other_names(
    spark: SparkSession, captured: Captured, dropped_tables: str
) -> None:
    """It comes by once more, and does not take the last one from the table that has it now."""
    captured.run("CREATE TABLE a (id int PRIMARY KEY);\nINSERT INTO a VALUES (1);")
    captured.run("CREATE TABLE fresh (id int PRIMARY KEY);\nINSERT INTO fresh VALUES (2);")
    captured.run("ALTER TABLE a RENAME TO b;\nINSERT INTO b VALUES (3);")
    captured.run("ALTER TABLE b RENAME TO t;\nINSERT INTO t VALUES (4);")
    captured.run("DROP TABLE t;\nALTER TABLE fresh RENAME TO t;\nINSERT INTO t VALUES (5);")
    path = str(captured.directory / "lake")
    sink = {"type": "delta", "path": path, "dropped_tables": dropped_tables}
    for every in (None, 1, 2):
        deliver_cut(spark, captured, every, sink=sink)
        check_equal(spark, captured, "t")
        lose_checkpoint(captured, "lake")


@pytest.mark.parametrize(
    ("end", "dropped_tables"),
    [
        pytest.param("DROP TABLE b;", "drop", id="deleted"),
        pytest.param(
            "ALTER TABLE b RENAME TO c;\nDROP TABLE c;\nCREATE TABLE c (id int);",
            "keep",
            id="replaced",
        ),
    ],
)
def test_a_dropped_table_has_lost_its_first_name(
    spark: SparkSession, captured: Captured, end: str, dropped_tables: str
) -> None:
    """Rows from under that name are passed over, and an update lacks what they had."""
    captured.run(LARGE.replace(" t ", " a "))
    captured.run("CREATE TABLE fresh (id int PRIMARY KEY);\nINSERT INTO fresh VALUES (2);")
    captured.run("ALTER TABLE a RENAME TO b;\nUPDATE b SET n = 1;")
    captured.run(f"{end}\nALTER TABLE fresh RENAME TO a;")
    path = captured.directory / "lake"
    sink = {"type": "delta", "path": str(path), "dropped_tables": dropped_tables}
    for every in (None, 1):
        deliver_cut(spark, captured, every, sink=sink)
        check_equal(spark, captured, "a")
        tables = {table.name for table in (path / "public").iterdir()}
        assert tables == ({"a"} if dropped_tables == "drop" else {"a", "c"})
        lose_checkpoint(captured, "lake")


def test_rows_that_are_there_and_rows_that_are_not(spark: SparkSession, captured: Captured) -> None:
    """In one write, and the table has had its columns for some of them only, and gets others."""
    sink: dict[str, Any] = {"type": "delta", "path": str(captured.directory / "lake")}
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    run_pipeline(spark, captured, sink=sink)
    captured.run("INSERT INTO t VALUES (2);")
    run_pipeline(spark, captured, sink=sink | {"committed_at": True})
    captured.run("INSERT INTO t VALUES (3);")
    lose_checkpoint(captured, "lake")
    run_pipeline(spark, captured, sink=sink | {"committed_at": True, "soft_delete": True})
    check_equal(spark, captured, "t")
