"""Parts of what a pipeline left behind are gone, or in the way: nothing is missed or doubled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType

from pgtide.cli.pipeline_facts import state_document
from pgtide.config import Config
from pgtide.errors import TargetError, TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.pipeline import delivery
from pgtide.pipeline.replaying import replay, target_tables
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import Parked, Resuming, State, now
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.steps import Rows
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.sinks.delta import first_commit, target
from pgtide.sinks.delta.columns import TargetColumn
from pgtide.sinks.delta.reached import pending
from pgtide.sinks.delta.target import Target
from pgtide.spark.compaction import Traits
from pgtide.spark.layout import Layout
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database

LAKE = "the lake, ä+"  # as paths may be


def configure(
    captured: Captured, mode: str, *, dropped_tables: str = "keep", **pipeline: Any
) -> Config:
    sink = {"type": "delta", "path": str(captured.directory / LAKE), "mode": mode}
    settings = {"sink": {**sink, "dropped_tables": dropped_tables}, **pipeline}
    return Config.model_validate({**captured.settings, "pipelines": {"lake": settings}})


def run(spark: SparkSession, captured: Captured, config: Config) -> State:
    captured.capture()
    return PipelineRun(spark, config, "lake").run(until_current=True)


def lake(spark: SparkSession, captured: Captured, table: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(str(captured.directory / LAKE / "public" / table))
    names = [name for name in frame.columns if not name.startswith("_pgtide_")]
    return sorted(tuple(row) for row in frame.select(*names).collect())


def test_a_lost_stream_begins_again(spark: SparkSession, captured: Captured) -> None:
    """Batch numbers begin at 0 again: they must not be taken for those that were written."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nCREATE TABLE bag (id int);")
    captured.run("INSERT INTO t VALUES (1);\nINSERT INTO bag VALUES (1), (1);")
    config = configure(captured, "mirror")
    file = StateFile(Storage(config.log.path, config.log.storage), "lake")
    stream = captured.directory / "log" / "pipelines" / "lake" / "stream"

    def check() -> None:
        for table in ("t", "bag"):
            assert lake(spark, captured, table) == sorted(captured.execute(f"TABLE {table}"))

    run(spark, captured, config)
    captured.run("INSERT INTO t VALUES (2);\nINSERT INTO bag VALUES (2), (2);")
    streamed = run(spark, captured, config)
    assert file.streams
    captured.run("INSERT INTO t VALUES (3);\nDELETE FROM t WHERE id = 1;")
    captured.run("INSERT INTO bag VALUES (1), (3);")
    shutil.rmtree(stream)
    again = run(spark, captured, config)
    check()
    assert again.rows == streamed.rows + 4, "what was delivered is not read again"

    # Killed before the stream's first offset, and while a parked table was catching up: what
    # comes now must not be passed over when the table is back.
    again.stream_began = True
    at = streamed.position
    again.parked["public.t"] = Parked(at, "message", "detail", "hint", now())
    again.resuming = Resuming(
        ["public.t"], at, again.position, [Position.end_of(again.position.lsn)]
    )
    file.save(again)
    shutil.rmtree(stream, ignore_errors=True)
    captured.run("INSERT INTO t VALUES (4);\nINSERT INTO bag VALUES (4);")
    assert not run(spark, captured, config).parked
    check()
    captured.run("INSERT INTO t VALUES (5);\nINSERT INTO bag VALUES (5);")
    run(spark, captured, config)
    assert file.streams
    check()


@pytest.mark.parametrize("mode", ["mirror", pytest.param("history", marks=pytest.mark.slow)])
def test_writes_that_come_again_are_counted(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Delta passes over a write that it has, and says nothing: pgtide does, and only then."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nCREATE TABLE bag (id int);")
    captured.run("INSERT INTO t VALUES (1), (2);\nINSERT INTO bag VALUES (1);")
    config = configure(captured, mode)
    assert run(spark, captured, config).skipped_writes == {}
    captured.run("INSERT INTO t VALUES (3);\nINSERT INTO bag VALUES (2);")
    captured.run("TRUNCATE t;\nINSERT INTO t VALUES (4);")

    def stop(point: str) -> None:
        if point == "pipeline.written":
            raise TargetUnavailable("stopped between the target and the state")

    with monkeypatch.context() as patch:
        patch.setattr(delivery, "fault", stop)
        with pytest.raises(TargetUnavailable):
            run(spark, captured, config)
    # To a mirror the TRUNCATE is a write of its own, and rows before it are none.
    expected = {"public.t": 2 if mode == "mirror" else 1, "public.bag": 1}
    again = run(spark, captured, config)
    assert again.skipped_writes == expected
    assert state_document(again)["skipped_writes"] == expected
    captured.run("INSERT INTO t VALUES (5);\nINSERT INTO bag VALUES (3);")
    assert run(spark, captured, config).skipped_writes == expected, "these are new"
    if mode == "mirror":
        assert lake(spark, captured, "t") == [(4,), (5,)]
    assert lake(spark, captured, "bag") == [(1,), (2,), (3,)]


@pytest.mark.slow
def test_replay_clears_what_was_set_aside(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("DROP TABLE t;\nCREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (2);")
    config = configure(captured, "history")
    run(spark, captured, config)
    (aside,) = [path.name for path in (captured.directory / LAKE / "public").glob("t__*")]
    assert target_tables(config, "lake") == ["public/t", f"public/{aside}"]
    replay(spark, config, "lake")
    assert (lake(spark, captured, "t"), lake(spark, captured, aside)) == ([(2,)], [(1,)])


@pytest.mark.slow
def test_a_rename_comes_again(spark: SparkSession, captured: Captured) -> None:
    """All is lost, and the table has its last name long before its renames are read."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    config = configure(captured, "mirror")
    run(spark, captured, config)
    captured.run("ALTER TABLE t RENAME TO u;\nINSERT INTO u VALUES (2);")
    captured.run("ALTER TABLE u RENAME TO v;\nINSERT INTO v VALUES (3);")
    captured.run("CREATE TABLE u (id int PRIMARY KEY);\nINSERT INTO u VALUES (4);")
    run(spark, captured, config)
    for _ in range(2):
        tables = sorted(path.name for path in (captured.directory / LAKE / "public").iterdir())
        assert tables == ["u", "v"]
        assert lake(spark, captured, "u") == [(4,)]
        assert lake(spark, captured, "v") == [(1,), (2,), (3,)]
        shutil.rmtree(captured.directory / "log" / "pipelines")
        batch = config.pipelines["lake"].model_copy(update={"batch": 1})
        run(spark, captured, config.model_copy(update={"pipelines": {"lake": batch}}))


@pytest.mark.parametrize("dropped_tables", [pytest.param("keep", marks=pytest.mark.slow), "drop"])
def test_a_table_takes_the_name_of_a_dropped_one(
    spark: SparkSession, captured: Captured, dropped_tables: str
) -> None:
    """As tables are replaced by new ones; then all of it comes again."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("CREATE TABLE fresh (id int PRIMARY KEY);\nINSERT INTO fresh VALUES (2);")
    config = configure(captured, "mirror", dropped_tables=dropped_tables)
    run(spark, captured, config)
    captured.run("DROP TABLE t;\nALTER TABLE fresh RENAME TO t;\nINSERT INTO t VALUES (3);")
    # It has another shape by the time that the rename is read.
    captured.run("ALTER TABLE t REPLICA IDENTITY FULL;")
    for _ in range(2):
        run(spark, captured, config)
        assert lake(spark, captured, "t") == [(2,), (3,)]
        shutil.rmtree(captured.directory / "log" / "pipelines")


@pytest.mark.slow
def test_a_table_without_its_key_for_a_time(spark: SparkSession, captured: Captured) -> None:
    """Rows that were deleted meanwhile do not come back with what was done before."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1), (2), (3);")
    captured.run("ALTER TABLE t DROP CONSTRAINT t_pkey;\nALTER TABLE t REPLICA IDENTITY FULL;")
    captured.run("DELETE FROM t WHERE id = 1;\nALTER TABLE t ADD PRIMARY KEY (id);")
    captured.run("DELETE FROM t WHERE id = 2;\nINSERT INTO t VALUES (4);")
    config = configure(captured, "mirror")
    for _ in range(2):
        run(spark, captured, config)
        assert lake(spark, captured, "t") == [(3,), (4,)]
        shutil.rmtree(captured.directory / "log" / "pipelines")


@pytest.mark.slow
def test_two_tables_that_go_to_one(spark: SparkSession, captured: Captured) -> None:
    """Rows from before the other's first are not taken for rows that are there."""
    captured.run("CREATE TABLE a (id int PRIMARY KEY);\nINSERT INTO a VALUES (1);")
    captured.run("CREATE TABLE b (id int PRIMARY KEY);\nINSERT INTO b VALUES (2);")
    routes = [{"table": "public.a", "to": "public.b"}]
    run(spark, captured, configure(captured, "mirror", tables=["public.b"]))
    shutil.rmtree(captured.directory / "log" / "pipelines")
    with pytest.raises(TargetError, match="two tables of the source would be one"):
        run(spark, captured, configure(captured, "mirror", routes=routes))
    assert lake(spark, captured, "b") == [(2,)]


def test_two_tables_that_would_be_made_as_one(spark: SparkSession, captured: Captured) -> None:
    """In the first batch of both: neither is written, whichever would have come first."""
    captured.run("CREATE TABLE a (id int PRIMARY KEY);\nINSERT INTO a VALUES (1);")
    captured.run("CREATE TABLE b (id int PRIMARY KEY);\nINSERT INTO b VALUES (2);")
    captured.run("CREATE TABLE c (id int PRIMARY KEY);\nINSERT INTO c VALUES (3);")
    captured.run("CREATE TABLE old (id int PRIMARY KEY);\nINSERT INTO old VALUES (4);")
    captured.run("ALTER TABLE old RENAME TO new;\nINSERT INTO new VALUES (5);")
    routes = [
        {"table": "public.a", "to": "public.z"},
        {"table": "public.b", "to": "public.z"},
        {"table": "public.old", "to": "public.one"},
        {"table": "public.new", "to": "public.one"},
    ]
    with pytest.raises(TargetError, match="two tables of the source would be one") as raised:
        run(spark, captured, configure(captured, "mirror", routes=routes))
    assert "public.a and public.b both go to public.z" in raised.value.detail
    assert list((captured.directory / LAKE).iterdir()) == []
    parking = configure(captured, "mirror", routes=routes, on_error="park")
    run(spark, captured, parking)
    state = StateFile(Storage(captured.config.log.path), "lake").load()
    assert state is not None
    assert set(state.parked) == {"public.a", "public.b"}
    assert lake(spark, captured, "c") == [(3,)]
    assert lake(spark, captured, "one") == [(4,), (5,)]
    assert not (captured.directory / LAKE / "public" / "z").exists()


def test_a_table_that_another_writer_makes_at_the_same_moment(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is known all the same: what is renamed later in the batch is found there."""
    make, lost = first_commit.create_table, list[bool]()

    def late(*arguments: Any) -> bool:
        assert make(*arguments), "the other one's"
        lost.append(not make(*arguments))
        return not lost[-1]

    monkeypatch.setattr(target, "create_table", late)
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("ALTER TABLE t RENAME TO u;\nINSERT INTO u VALUES (2);")
    run(spark, captured, configure(captured, "mirror"))
    assert lost == [True]
    assert lake(spark, captured, "u") == [(1,), (2,)]
    assert not (captured.directory / LAKE / "public" / "t").exists()


@pytest.mark.slow
def test_a_dropped_table_takes_no_other_with_it(
    spark: SparkSession, database: Database, make_captured: MakeCaptured
) -> None:
    """One of which the lake has nothing, and whose route leads to another's place."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    captured = make_captured(database)
    routes = [{"table": "public.a", "to": "public.b"}]
    config = configure(captured, "mirror", dropped_tables="drop", routes=routes)
    captured.run("CREATE TABLE b (id int PRIMARY KEY);\nINSERT INTO b VALUES (1);")
    run(spark, captured, config)
    captured.run("DROP TABLE a;\nINSERT INTO b VALUES (2);\n")
    run(spark, captured, config)
    assert lake(spark, captured, "b") == [(1,), (2,)]
    captured.run("DROP TABLE b;\n")
    run(spark, captured, config)
    assert not (captured.directory / LAKE / "public" / "b").exists()


@pytest.mark.slow
def test_a_rename_that_nobody_tells(
    spark: SparkSession, database: Database, make_captured: MakeCaptured
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured = make_captured(database, ddl=False)
    config = configure(captured, "mirror")
    captured.run("INSERT INTO t VALUES (1);\n")
    run(spark, captured, config)
    captured.run("INSERT INTO t VALUES (2);\n")
    captured.run("ALTER TABLE t RENAME TO u;\nINSERT INTO u VALUES (3);")
    run(spark, captured, config)
    assert lake(spark, captured, "u") == [(1,), (2,), (3,)]


def test_a_part_of_a_transaction_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """Batches end elsewhere after a lost checkpoint: the part must not come twice."""
    target = Target(spark, str(tmp_path / "t"), {})
    target.create([TargetColumn("id", IntegerType())], {})
    shape = Shape(7, "public", "t", (), id=1)
    layout = Layout.of(shape, {1: shape})

    def step(low: tuple[int, int], high: tuple[int, int]) -> Rows:
        first, last = (Position(Lsn(lsn), seq) for lsn, seq in (low, high))
        return Rows(("public", "t"), layout, (shape,), first, last, 1, Traits())

    def write(wanted: Rows, *, cut: bool) -> list[str]:
        """Where what is left to write begins."""
        found = []
        for portion in pending(target, wanted, cut=cut):
            if portion is None:
                continue
            portion.announce(target)
            portion.append(target, spark.range(1).selectExpr("CAST(id AS int) AS id"))
            found.append(str(portion.step.low))
        return found

    assert write(step((100, 0), (200, 3)), cut=True) == ["0/64:0", "0/C8:0"]
    assert write(step((100, 0), (200, 3)), cut=True) == []
    assert write(step((150, 0), (200, 5)), cut=True) == ["0/C8:4"]
    assert write(step((100, 0), (300, 0)), cut=False) == ["0/C8:6"]
    assert write(step((100, 0), (300, 0)), cut=False) == []
    # Killed when it has told of the next, of a part of which there is nothing yet.
    assert write(step((400, 0), (400, 2)), cut=True) == ["0/190:0"]
    (portion,) = pending(target, step((500, 0), (500, 2)), cut=True)
    assert portion is not None
    portion.announce(target)
    assert write(step((400, 0), (600, 0)), cut=False) == ["0/1F4:0"]
