"""A census from files is the one that Spark would take, and cuts lie between files."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtide.log.reader import Log
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import DataFile
from pgtide.log.storage import Storage
from pgtide.pipeline.census import Census, take_census
from pgtide.pipeline.file_census import Between, census_of_files, census_of_log
from pgtide.pipeline.reading import LogFrames, between_files
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured
from tests.snapshot.taking import take

START, END = Position(Lsn(0)), Position.end_of(Lsn(2**62))


def ordered(census: Census | None) -> Census | None:
    """Its counts in one order: nobody promises any."""
    if census is None:
        return None
    return replace(census, counts=tuple(sorted(census.counts, key=repr)))


def test_a_snapshot_and_changes(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, doc text);\n"
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;\n"
        "CREATE TABLE u (id int);\n"
        "ALTER TABLE u REPLICA IDENTITY FULL;\n"
    )
    captured.run("INSERT INTO t SELECT generate_series(1, 2000), repeat('x', 3000)")
    captured.run("INSERT INTO u SELECT generate_series(1, 10)")
    take(captured, spark)
    captured.run("UPDATE t SET id = -id WHERE id < 9;\nUPDATE u SET id = 0 WHERE id < 3;\n")
    captured.run("ALTER TABLE u ADD n int;\nDELETE FROM u;\nTRUNCATE t;\nINSERT INTO t VALUES (1);")
    captured.run("UPDATE t SET doc = 'short';\nSELECT pg_logical_emit_message(false, 'p', 'm')")
    captured.run("INSERT INTO u SELECT generate_series(1, 3000)")
    captured.capture()
    storage = Storage(captured.config.log.path)
    changes, frames = storage.child(CHANGES), LogFrames(spark, storage)
    snapshot = captured.log.snapshot()
    taken = take_census(frames.between(snapshot.version, START, END))
    assert {count.op for count in taken.counts} > {"read", "update", "delete", "truncate", "ddl"}
    assert any(count.unsent for count in taken.counts)
    assert any(count.old_rows for count in taken.counts)
    assert ordered(census_of_files(changes, snapshot.files, Between(START, END))) == ordered(taken)
    for one in snapshot.files:
        part = take_census(frames.between(snapshot.version, one.low, one.high))
        found = census_of_files(changes, snapshot.files, Between(one.low, one.high))
        assert ordered(found) == ordered(part)
    for one in (one for one in snapshot.files if one.rows > 1):
        for ends in ((one.low.next, END), (START, Position(one.high.lsn, one.high.seq - 1))):
            part = take_census(frames.between(snapshot.version, *ends))
            found = census_of_files(changes, snapshot.files, Between(*ends))
            assert ordered(found) == ordered(part)
        between = Between(one.high, Position(one.high.lsn, one.high.seq - 1))
        found = census_of_files(changes, [one], between)
        assert found is not None
        assert found.high is None
    # What a file holds that does not open is not known: Spark says why.
    unreadable = replace(snapshot.files[0], path=str(Path(snapshot.files[0].path).parent))
    assert census_of_files(changes, [unreadable], Between(START, END)) is None


def test_what_retention_has_taken_is_not_counted(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of an older version has those rows: what files are left does not tell of them."""
    captured.run("CREATE TABLE t (id int);\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    snapshot = captured.log.snapshot()
    low = min(file.low for file in snapshot.files)
    assert census_of_log(captured.log, Between(low, END)) is not None
    taken = replace(snapshot, complete_from=Lsn(low.lsn + 1))
    monkeypatch.setattr(Log, "snapshot", lambda _: taken)
    assert census_of_log(captured.log, Between(low, END)) is None
    assert census_of_log(captured.log, Between(Position(taken.complete_from), END)) is not None


def file(low: int, high: int, size: int, seqs: tuple[int, int] = (0, 9)) -> DataFile:
    """One that holds what is between two positions."""
    ends = Position(Lsn(low), seqs[0]), Position(Lsn(high), seqs[1])
    return DataFile(f"{low}-{seqs[0]}", size, date(2026, 3, 1), 0, 100, *ends, None)


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
