"""Rows that were read, and sweeps, in lake tables: what is gone at the source is gone there."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import Unrepresentable
from pgtide.log.refreshes import Refresh, RefreshStore, Standing
from pgtide.log.storage import Storage
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.history_rows import HistoryRows
from tests.sinks.lakes import deliver, lose_checkpoint, rows, table
from tests.sinks.test_scd2 import versions

SWEPT_AT = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def mirrored(spark: SparkSession, captured: Captured, name: str = "t") -> list[tuple[Any, ...]]:
    frame = table(spark, captured, "mirror", name)
    names = [n for n in frame.columns if not n.startswith("_pgtide_") or n == "_pgtide_deleted"]
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=repr)


def positions(spark: SparkSession, captured: Captured) -> dict[int, Position]:
    frame = table(spark, captured, "mirror", "t").select("id", "_pgtide_lsn", "_pgtide_seq")
    return {row[0]: Position(Lsn(row[1]), row[2]) for row in frame.collect()}


def test_mirror(spark: SparkSession, captured: Captured) -> None:
    """Ghosts go by range, by key and all together; then everything again, in one batch."""
    history = HistoryRows(captured)
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text);
INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL);
"""
    )
    history.ghosts("t", ["7", "g"], ["8", "g"], ["9", "g"], ["10", "g"])
    deliver(spark, captured, "mirror")
    real = [(1, "a"), (2, "b"), (3, None)]
    assert len(mirrored(spark, captured)) == 7

    start = Position(Lsn(history.here() + 1))
    history.sweep("t", start, low="7", high="7")
    history.sweep("t", start, low="10")
    captured.run("INSERT INTO t VALUES (10, 'real')")
    history.sweep("t", start, keys=[["9"], ["11"]])
    deliver(spark, captured, "mirror")
    assert mirrored(spark, captured) == sorted([*real, (8, "g"), (10, "real")], key=repr)

    captured.run("UPDATE t SET name = 'B' WHERE id = 2;\nDELETE FROM t WHERE id = 3;\n")
    seen = history.read("t")
    history.sweep("t", seen)
    captured.run("INSERT INTO t VALUES (8, 'back')")
    deliver(spark, captured, "mirror")
    wanted = sorted([(1, "a"), (2, "B"), (8, "back"), (10, "real")], key=repr)
    assert mirrored(spark, captured) == wanted
    assert positions(spark, captured)[1] == seen, "seen, if not changed"
    lose_checkpoint(captured, "mirror")
    deliver(spark, captured, "mirror")
    assert mirrored(spark, captured) == wanted
    lose_checkpoint(captured, "mirror")
    shutil.rmtree(captured.directory / "mirror")
    deliver(spark, captured, "mirror")
    assert mirrored(spark, captured) == wanted


@pytest.mark.slow
def test_soft_delete(spark: SparkSession, captured: Captured) -> None:
    history = HistoryRows(captured)
    captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, name text);\nINSERT INTO t VALUES (1, 'a');\n"
    )
    captured.run("INSERT INTO t VALUES (2, 'gone');\nDELETE FROM t WHERE id = 2;\n")
    history.ghosts("t", ["7", "g"], ["9", "g"])
    seen = history.read("t")
    history.sweep("t", seen, keys=[["7"]])
    at = history.sweep("t", seen)
    captured.run("INSERT INTO t VALUES (9, 'back')")
    wanted = [(1, "a", False), (7, "g", True), (9, "back", False)]
    for _ in range(2):
        deliver(spark, captured, "mirror", soft_delete=True)
        assert mirrored(spark, captured) == wanted
        assert positions(spark, captured)[7] < at
        lose_checkpoint(captured, "mirror")


@pytest.mark.slow
def test_partition(spark: SparkSession, captured: Captured) -> None:
    """A sweep of one partition leaves the others' rows."""
    history = HistoryRows(captured)
    captured.run(
        """CREATE TABLE t (id int, name text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE high (name text, id int PRIMARY KEY);
ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (10) TO (20);
INSERT INTO t VALUES (1, 'a'), (11, 'b');
"""
    )
    history.ghosts("low", ["2", "g"])
    history.ghosts("high", ["g", "12"], ["g", "13"])
    seen = history.read("low")
    history.sweep("low", seen)
    deliver(spark, captured, "mirror")
    assert mirrored(spark, captured) == [(1, "a"), (11, "b"), (12, "g"), (13, "g")]
    deliver(spark, captured, "scd2")
    assert [v[:1] + v[2:] for v in versions(spark, captured, "id", "name")] == [
        (1, True),
        (2, False),
        (11, True),
        (12, True),
        (13, True),
    ]
    history.sweep("high", Position(Lsn(history.here() + 1)), keys=[["12"], ["13"]])
    deliver(spark, captured, "mirror")
    assert mirrored(spark, captured) == [(1, "a"), (11, "b")]


@pytest.mark.slow
def test_keyless(spark: SparkSession, captured: Captured) -> None:
    """Equal rows are one: what is deleted behind the sweep was not there before it."""
    history = HistoryRows(captured)
    captured.run("CREATE TABLE t (name text);\nALTER TABLE t REPLICA IDENTITY FULL;\n")
    captured.run("INSERT INTO t VALUES ('a'), ('a'), ('b');\n")
    history.ghosts("t", ["a"], ["g"])
    history.replace("t")
    captured.run("DELETE FROM t WHERE name = 'b';\nINSERT INTO t VALUES ('c');\n")
    for _ in range(2):
        deliver(spark, captured, "mirror")
        assert mirrored(spark, captured) == [("a",), ("a",), ("c",)]
        lose_checkpoint(captured, "mirror")


@pytest.mark.slow
def test_history_and_pivot(spark: SparkSession, captured: Captured) -> None:
    """A row that was read is in the history and no changed field; a sweep is in neither."""
    history = HistoryRows(captured)
    captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, name text);\nINSERT INTO t VALUES (1, 'a');\n"
    )
    captured.run("ALTER TABLE t REPLICA IDENTITY FULL;\n")
    history.replace("t")
    captured.run("UPDATE t SET name = 'b'")
    keep = {"column": "name", "operator": "eq", "value": "a"}
    rules = [{"table": "t", "filter": keep, "operations": ["insert"]}]
    for _ in range(2):
        deliver(spark, captured, "history", rules=rules)
        found = rows(table(spark, captured, "history", "t"), "_pgtide_op", "id", "name")
        assert found == [("insert", 1, "a"), ("read", 1, "a"), ("update", 1, "b")]
        state = StateFile(storage(captured), "history").load()
        assert state is not None
        assert state.withheld.get("public.t", 0) == 0
        lose_checkpoint(captured, "history")
    deliver(spark, captured, "pivot")
    kinds = table(spark, captured, "pivot", "t").select("crud_type", "new_value").collect()
    assert sorted(map(tuple, kinds)) == [("c", "a"), ("u", "b")]


@pytest.mark.slow
def test_versions(spark: SparkSession, captured: Captured) -> None:
    """A read begins a version only where something differs, and keeps others from the sweep."""
    history = HistoryRows(captured)
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, numbers float8[]);
INSERT INTO t VALUES (1, 'a', '{1,NaN,NULL}'), (2, NULL, NULL), (3, 'c', '{}');
"""
    )
    history.ghosts("t", ["4", "ghost", None], ["5", "ghost", None])
    deliver(spark, captured, "scd2")
    history.ghosts("t", ["3", "missed", None])  # as if an update had been lost
    captured.run("UPDATE t SET name = 'A' WHERE id = 1;\nINSERT INTO t VALUES (6, 'f', NULL);\n")
    seen = history.read("t")
    at = history.sweep("t", seen, committed_at=SWEPT_AT)
    captured.run("INSERT INTO t VALUES (5, 'real', NULL);\nUPDATE t SET name = 'B' WHERE id = 2;\n")
    wanted = [
        (1, "a", False),
        (1, "A", True),
        (2, None, False),
        (2, "B", True),
        (3, "c", False),
        (3, "missed", False),
        (3, "c", True),
        (4, "ghost", False),
        (5, "ghost", False),
        (5, "real", True),
        (6, "f", True),
    ]
    for again in (False, True):
        deliver(spark, captured, "scd2")
        assert versions(spark, captured, "id", "name") == wanted
        frame = table(spark, captured, "scd2", "t")
        ended = frame.filter("name = 'ghost'").collect()
        for row in ended:
            assert Position(Lsn(row["_pgtide_end_lsn"]), row["_pgtide_end_seq"]) == at
            assert row["valid_to"].astimezone(UTC) == SWEPT_AT
        last = frame.filter("id = 1 AND is_current").first()
        assert last is not None
        assert Position(Lsn(last["_pgtide_seen_lsn"]), last["_pgtide_seen_seq"]) == seen
        lose_checkpoint(captured, "scd2")
        if not again:
            shutil.rmtree(captured.directory / "scd2")
    deliver(spark, captured, "scd2")
    assert versions(spark, captured, "id", "name") == wanted


LARGE = """CREATE TABLE t (id int PRIMARY KEY, name text, long text);
ALTER TABLE t ALTER long SET STORAGE EXTERNAL;
INSERT INTO t SELECT n, 'n' || n, repeat('x', 5000) FROM generate_series(1, 4) n"""


def storage(captured: Captured) -> Storage:
    return Storage(captured.config.log.path, captured.config.log.storage)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mirror", "scd2"])
def test_rows_that_a_refresh_will_bring(
    spark: SparkSession, database: Database, make_captured: MakeCaptured, mode: str
) -> None:
    """While a table is being read, an update of a row that is not there yet is passed over."""
    for statement in LARGE.split(";\n"):
        database.execute(statement)
    captured = make_captured(database)
    history = HistoryRows(captured)
    captured.run(
        """UPDATE t SET name = 'new' WHERE id = 1;
UPDATE t SET id = 30 WHERE id = 3;
UPDATE t SET name = name || '!' WHERE id = 30;
INSERT INTO t VALUES (5, 'e', 'short');
"""
    )
    with pytest.raises(Unrepresentable, match="does not carry all of its row"):
        deliver(spark, captured, mode)
    store = RefreshStore(storage(captured))
    refresh = Refresh(table="public.t")
    store.add(refresh)
    store.steer(refresh.id, "pause")  # the capture leaves it to this test
    deliver(spark, captured, mode)
    state = StateFile(storage(captured), mode).load()
    assert state is not None
    assert state.withheld["public.t"] == (2 if mode == "mirror" else 3)
    assert [row[0] for row in table(spark, captured, mode, "t").select("id").collect()] == [5]

    # Done, while the pipeline is behind: what it has not come to is still to be read.
    captured.run("UPDATE t SET name = 'newer' WHERE id = 1;\n")
    history.read("t")
    store.save(refresh.id, Standing(state="done", until=history.here()))
    deliver(spark, captured, mode)
    current = table(spark, captured, mode, "t")
    current = current.filter("is_current") if mode == "scd2" else current
    found = [tuple(row) for row in current.select("id", "name", "long").orderBy("id").collect()]
    assert found == captured.execute("SELECT id, name, long FROM t ORDER BY id")
