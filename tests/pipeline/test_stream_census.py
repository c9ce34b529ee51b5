"""The census of a stream's batch by its files is the one that Spark would take."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from pgtide.log.compaction import compact
from pgtide.log.storage import Storage
from pgtide.log.table import open_table
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.reading import LogFrames
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.stream_census import stream_census
from pgtide.position import Lsn
from pgtide.spark.paths import spark_path
from tests.fixtures.capture import Captured
from tests.pipeline.test_file_census import ordered


class Stream:
    """The stream of a log, and the censuses of its batches both ways."""

    def __init__(self, spark: SparkSession, captured: Captured) -> None:
        self.storage = Storage(captured.config.log.path)
        self.frames = LogFrames(spark, self.storage)
        self.file = StateFile(self.storage, "counted")
        self.captured = captured

    def read(self, after: Lsn, batch_bytes: int = 1 << 30) -> list[tuple[Census, Census | None]]:
        start = None if self.file.streams else 0
        found: list[tuple[Census, Census | None]] = []
        failed: list[BaseException] = []

        def count(batch: DataFrame, number: int) -> None:
            try:
                changes = self.captured.log.changes
                by_files = stream_census(self.file, changes, number, after)
                found.append((take_census(batch), by_files))
            except BaseException as error:
                failed.append(error)
                raise

        frame = self.frames.stream(start, after, batch_bytes)
        writer = frame.writeStream.foreachBatch(count).trigger(availableNow=True)
        query = writer.option("checkpointLocation", spark_path(self.file.stream.root)).start()
        query.awaitTermination()
        assert not failed
        return found


def test_batches_of_whole_commits(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY, doc text);\nINSERT INTO t VALUES (1, 'x');\n")
    captured.capture()
    stream = Stream(spark, captured)
    assert [by_files for _, by_files in stream.read(Lsn(0))] == [
        None
    ]  # where it began is not noted
    captured.run("INSERT INTO t VALUES (2, 'y');\nUPDATE t SET id = -id;\n")
    captured.capture()
    captured.run("ALTER TABLE t ADD n int;\nTRUNCATE t;\nINSERT INTO t VALUES (3, 'z', 1);\n")
    captured.capture()
    ((taken, by_files),) = stream.read(Lsn(0))
    assert taken.rows > 5
    assert ordered(by_files) == ordered(taken)
    # Rows that were read before the stream began are left out.
    captured.run("INSERT INTO t VALUES (4);\n")
    captured.run("INSERT INTO t VALUES (5);\n")
    captured.capture()
    end = captured.log.end.lsn
    captured.run("INSERT INTO t VALUES (6);\n")
    captured.capture()
    ((taken, by_files),) = stream.read(end)
    assert taken.rows == 1
    assert ordered(by_files) == ordered(taken)


def test_commits_that_compaction_adds(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    stream = Stream(spark, captured)
    stream.read(Lsn(0))
    for number in range(2, 6):
        captured.run(f"INSERT INTO t VALUES ({number});\n")
        captured.capture()
    changes = captured.log.changes
    assert compact(changes, open_table(changes), captured.log.end, everything=True)
    captured.run("INSERT INTO t VALUES (6);\n")
    captured.capture()
    ((taken, by_files),) = stream.read(Lsn(0))
    assert taken.rows == 5
    assert ordered(by_files) == ordered(taken)


def test_a_commit_that_is_parted(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY, doc text);\n")
    captured.capture()
    stream = Stream(spark, captured)
    stream.read(Lsn(0))
    captured.run("INSERT INTO t SELECT n, repeat('x', 1000000) FROM generate_series(1, 40) n;\n")
    captured.capture()
    found = stream.read(Lsn(0), batch_bytes=1)
    assert len(found) > 1
    for taken, by_files in found:
        assert by_files is None or ordered(by_files) == ordered(taken)
    assert any(by_files is None for _, by_files in found)
