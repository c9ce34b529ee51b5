"""Checksums of versions say what Delta would find out, so that Spark runs no job for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgtide.errors import LogUnavailable
from pgtide.log.checksums import KEPT
from pgtide.log.compaction import compact
from pgtide.log.table import open_table
from pgtide.position import Lsn, Position


def checksums(log: Any) -> list[Path]:
    return sorted(Path(log.changes.root, "_delta_log").glob("*.crc"))


def check_newest(log: Any) -> None:
    """See that the newest version's is there, and true."""
    table = DeltaTable(log.changes.root)
    newest = checksums(log)[-1]
    assert int(newest.stem) == table.version()
    found = json.loads(newest.read_text())
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    assert (found["numFiles"], found["tableSizeBytes"]) == (len(sizes), sum(sizes))


def test_beside_compaction_and_another_opening(small_log: Any) -> None:
    small_log.commit_each(32)
    check_newest(small_log)
    assert len(checksums(small_log)) == KEPT
    assert compact(small_log.changes, open_table(small_log.changes), Position(Lsn(10**9))) == 32
    small_log.append([{"lsn": 3000}])
    check_newest(small_log)
    small_log.writer.reopen()
    small_log.append([{"lsn": 4000}, {"lsn": 4000, "seq": 1}])
    check_newest(small_log)
    assert not list(Path(small_log.changes.root).glob("_checksum*"))


def test_what_is_passed_twice_counts_once(small_log: Any) -> None:
    """An append that fails behind a commit of compaction, and is tried again."""
    small_log.commit_each(4)
    everything = Position(Lsn(10**9))
    assert compact(small_log.changes, open_table(small_log.changes), everything, everything=True)
    blocked = small_log.writer.version + 2
    altered = Path(small_log.changes.root, "_delta_log", f"{blocked:020}.json")
    altered.write_text(json.dumps({"metaData": {}}))
    with pytest.raises(LogUnavailable, match="altered"):
        small_log.append([{"lsn": 3000}])
    altered.unlink()
    small_log.append([{"lsn": 3008}])
    check_newest(small_log)


def test_one_without_its_commit_does_not_keep_the_log_shut(small_log: Any) -> None:
    """As in a copy that was made while commits were."""
    small_log.commit_each(4)
    newest = checksums(small_log)[-1]
    for ahead in (1, 2):
        behind = newest.with_name(f"{small_log.writer.version + ahead:020}.crc")
        behind.write_text(newest.read_text())
    assert open_table(small_log.changes).version() == small_log.writer.version
    assert small_log.open().snapshot().version == small_log.writer.version
    small_log.writer.reopen()
    small_log.append([{"lsn": 3000}])
    check_newest(small_log)


def test_one_that_is_seen_before_its_commit(
    small_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By maintenance, when it looks for what was appended beside it."""
    small_log.commit_each(4)
    early = checksums(small_log)[-1].with_name(f"{small_log.writer.version + 2:020}.crc")
    update, seen = DeltaTable.update_incremental, list[bool]()

    def updating(self: DeltaTable) -> None:
        if seen:
            early.unlink()
        else:
            early.write_text("{}")
        seen.append(True)
        update(self)

    table = open_table(small_log.changes)
    monkeypatch.setattr(DeltaTable, "update_incremental", updating)
    everything = Position(Lsn(10**9))
    assert compact(small_log.changes, table, everything, everything=True) == 4
    assert len(seen) == 2
    assert table.version() == small_log.writer.version + 1


def test_delta_takes_them_for_true(spark: SparkSession, small_log: Any) -> None:
    small_log.append([{"lsn": 1000}, {"lsn": 1000, "seq": 1}])
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, small_log.changes.root
    )
    snapshot = delta.unsafeVolatileSnapshot()
    known = snapshot.checksumOpt().get()
    computed = snapshot.computeChecksum()
    assert snapshot.version() == small_log.writer.version
    assert known.metadata().equals(computed.metadata())
    assert known.protocol().equals(computed.protocol())
    assert snapshot.validateChecksum(jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))
    # What it knows of the table without them is the same.
    for path in checksums(small_log):
        path.unlink()
    small_log.append([{"lsn": 2000}])
    checksums(small_log)[-1].unlink()
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    anew = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark._jsparkSession, small_log.changes.root
    ).unsafeVolatileSnapshot()
    assert anew.checksumOpt().isEmpty()
    assert anew.metadata().equals(known.metadata())
    assert anew.protocol().equals(known.protocol())
