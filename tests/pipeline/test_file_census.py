"""A census from files is the one that Spark would take, and cuts lie between files."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from pyspark.sql import SparkSession

from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.file_census import FEW_ROWS, census_of_files
from pgtide.pipeline.reading import LogFrames, between_files, bounds_of
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured
from tests.snapshot.taking import take

START, END = Position(Lsn(0)), Position.end_of(Lsn(2**62))


def ordered(census: Census | None) -> Census | None:
    """Its counts in one order: nobody promises any."""
    if census is None:
        return None
    return replace(census, counts=tuple(sorted(census.counts, key=repr)))


def test_a_snapshot_and_few_changes(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, doc text);\n"
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;\n"
        "CREATE TABLE u (id int);\n"
        "ALTER TABLE u REPLICA IDENTITY FULL;\n"
    )
    captured.run(f"INSERT INTO t SELECT generate_series(1, {2 * FEW_ROWS}), repeat('x', 3000)")
    captured.run("INSERT INTO u SELECT generate_series(1, 10)")
    take(captured, spark)
    captured.run("UPDATE t SET id = -id WHERE id < 9;\nUPDATE u SET id = 0 WHERE id < 3;\n")
    captured.run("ALTER TABLE u ADD n int;\nDELETE FROM u;\nTRUNCATE t")
    captured.capture()
    storage = Storage(captured.config.log.path)
    changes, frames = storage.child(CHANGES), LogFrames(spark, storage)
    snapshot = captured.log.snapshot()
    taken = take_census(frames.between(snapshot.version, START, END))
    assert {count.op for count in taken.counts} >= {"read", "update", "delete", "truncate", "ddl"}
    assert any(count.unsent for count in taken.counts)
    assert ordered(census_of_files(changes, snapshot.files, START, END)) == ordered(taken)
    large = next(f for f in snapshot.files if f.rows > FEW_ROWS)
    part = take_census(frames.between(snapshot.version, large.low, large.high))
    assert not part.whole
    assert ordered(census_of_files(changes, snapshot.files, large.low, large.high)) == ordered(part)

    # Of rows that are a part of a file nothing is known, nor of other large files.
    assert census_of_files(changes, snapshot.files, large.low.next, END) is None
    captured.run(f"INSERT INTO u SELECT generate_series(1, {2 * FEW_ROWS})")
    captured.capture()
    assert census_of_files(changes, captured.log.snapshot().files, START, END) is None


def file(
    low: int, high: int, size: int, op: str | None = None, seqs: tuple[int, int] = (0, 9)
) -> DataFile:
    """One that holds what is between two positions."""
    ends = Position(Lsn(low), seqs[0]), Position(Lsn(high), seqs[1])
    return DataFile(f"{low}-{seqs[0]}", size, date(2026, 3, 1), 0, 100, *ends, None, op)


def test_cuts_between_files() -> None:
    end_of = Position.end_of
    many = [file(n, n, 30) for n in range(1, 8)]
    assert between_files(many, 60) == [end_of(Lsn(2)), end_of(Lsn(4)), end_of(Lsn(6))]
    assert between_files(many, 300) == []
    overlapping = [file(1, 3, 20), file(2, 5, 20), file(4, 4, 20), file(9, 9, 30)]
    assert between_files(overlapping, 60) == [end_of(Lsn(5))]
    assert between_files(overlapping, 59) is None
    assert between_files([file(1, 1, 10), file(2, 9, 1000)], 60) is None
    # One transaction is not parted as long as it fits.
    parts = [file(5, 5, 20, seqs=(10 * n, 10 * n + 9)) for n in range(6)]
    assert between_files([file(1, 1, 50), *parts[:3]], 60) == [end_of(Lsn(1))]
    inside = [Position(Lsn(5), 29)]
    assert between_files(parts, 60) == inside
    # Reads are by themselves, if there are many of them.
    reads = [file(5, 5, 50, "read"), file(5, 5, 50, "read", (10, 19))]
    ended = file(5, 5, 1, "message", (20, 20))
    assert between_files([*reads, ended], 60) == [Position(Lsn(5), 9), Position(Lsn(5), 19)]
    assert between_files([file(1, 1, 2, "insert"), file(2, 2, 2, "read")], 60) == []


def test_chunks_of_a_snapshot_need_no_spark(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY)")
    captured.run(f"INSERT INTO t SELECT generate_series(1, {2 * FEW_ROWS})")
    take(captured, spark)
    snapshot = captured.log.snapshot()
    start = Position(Lsn(snapshot.source.snapshot - 1))
    frames = LogFrames(spark, Storage(captured.config.log.path))
    cuts = frames.cuts(snapshot, start, max(file.size for file in snapshot.files))
    changes = Storage(captured.config.log.path).child(CHANGES)
    found = [
        census_of_files(changes, snapshot.files, *bounds_of(start, cuts, number))
        for number in range(len(cuts))
    ]
    assert [census and census.rows for census in found] == [2 * FEW_ROWS, 1]
    assert found[-1] is not None
    assert found[-1].whole
