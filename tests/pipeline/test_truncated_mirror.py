"""Many TRUNCATEs in one batch: a mirror is what the source is, in one truncation and one write."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgtide.pipeline.reading import LogFrames
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.history_rows import HistoryRows
from tests.pipeline.test_mirror import check_equal, mirror, run_pipeline
from tests.sinks.lakes import lose_checkpoint

TRUNCATES = 8


def burst(*statements: str) -> str:
    """Statements over and over, each time in a transaction of their own; ``{n}`` counts."""
    return "".join(f"{s.format(n=n)};\n" for n in range(TRUNCATES) for s in statements)


class Writes:
    """What was done to a table of the lake since the last look."""

    def __init__(self, captured: Captured, table: str) -> None:
        self._path = str(captured.directory / "lake" / "public" / table)
        self._seen = DeltaTable(self._path).version()

    def since(self) -> list[str]:
        """Operations, the first ones first; a write is either an append or a merge."""
        history = DeltaTable(self._path).history()
        found = [entry["operation"] for entry in history if entry["version"] > self._seen]
        self._seen += len(found)
        return ["WRITE" if name == "MERGE" else name for name in reversed(found)]


def quarantine(spark: SparkSession, captured: Captured) -> list[str]:
    path = captured.directory / "lake" / "_pgtide" / "quarantine"
    frame = spark.read.format("delta").load(str(path))
    return sorted(row["text"] for row in frame.select("text").collect())


def test_one_truncation_and_one_write(spark: SparkSession, captured: Captured) -> None:
    """Also where the rows between could not be written: nobody will see them."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, day date);
CREATE TABLE bag (id int, day date);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t SELECT n, '2024-02-29' FROM generate_series(1, 20) n;
INSERT INTO bag SELECT n % 5 FROM generate_series(1, 20) n;
"""
    )
    before = run_pipeline(spark, captured)
    tables = [Writes(captured, name) for name in ("t", "bag")]
    captured.run(
        burst(
            "INSERT INTO t VALUES (100 + {n}, 'infinity'), (200, NULL)",
            "UPDATE t SET id = id + 1 WHERE id > 100",
            "INSERT INTO bag VALUES ({n}, 'infinity'), ({n}, NULL)",
            "DELETE FROM bag WHERE id = {n} - 1",
            "TRUNCATE t, bag",
        )
    )
    captured.run("INSERT INTO t VALUES (1, NULL), (2, '2024-03-01');\nDELETE FROM t WHERE id = 1;")
    captured.run("INSERT INTO bag VALUES (1), (1), (2);\nDELETE FROM bag WHERE id = 2;")
    after = run_pipeline(spark, captured)
    check_equal(spark, captured, "t", "bag")
    assert after.batches == before.batches + 1
    assert [table.since() for table in tables] == [["DELETE", "WRITE"]] * 2
    events = sum(e.table == "t" and e.op != "truncate" for e in captured.events() if e.op != "ddl")
    assert after.table_rows["public.t"] == events, "all of them were delivered"

    for text in ("infinity", "-infinity"):
        captured.run(f"TRUNCATE t, bag;\nINSERT INTO t VALUES (3, '{text}');\n")
        captured.run(f"INSERT INTO bag VALUES (3, '{text}');\n")
    run_pipeline(spark, captured, on_unrepresentable="null")
    assert mirror(spark, captured, "t") == mirror(spark, captured, "bag") == [(3, None)]
    assert quarantine(spark, captured) == ["-infinity"] * 2


@pytest.mark.slow
def test_partitions(spark: SparkSession, captured: Captured) -> None:
    """A partition's TRUNCATE leaves the rows of others, that of the table takes all."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE bag (id int, n int) PARTITION BY RANGE (id);
"""
    )
    run_pipeline(spark, captured)
    # Nothing has told the mirrors yet which rows are whose.
    captured.run(
        """CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100);
CREATE TABLE bag_low PARTITION OF bag FOR VALUES FROM (0) TO (100);
TRUNCATE t_low, bag_low;
"""
    )
    run_pipeline(spark, captured)
    captured.run(
        """CREATE TABLE t_high (n int, id int PRIMARY KEY);
ALTER TABLE t ATTACH PARTITION t_high FOR VALUES FROM (100) TO (200);
CREATE TABLE bag_high (n int, id int);
ALTER TABLE bag ATTACH PARTITION bag_high FOR VALUES FROM (100) TO (200);
"""
    )
    captured.run(
        """INSERT INTO t SELECT n, n FROM generate_series(0, 199, 10) n;
INSERT INTO bag SELECT n, n FROM generate_series(0, 199, 10) n;
"""
    )
    run_pipeline(spark, captured)
    tables = [Writes(captured, name) for name in ("t", "bag")]
    captured.run(
        burst(
            "TRUNCATE t_low, bag_low",
            "INSERT INTO t VALUES ({n}, 0), (120 + {n}, 1) ON CONFLICT DO NOTHING",
            "UPDATE t SET id = 101 + {n} WHERE id = {n}",
            "UPDATE t SET id = 50 + {n} WHERE id = 120 + {n}",
            "INSERT INTO bag VALUES ({n}, 0), (120, 1)",
        )
    )
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t", "bag")
    assert [table.since() for table in tables] == [["WRITE", "DELETE", "WRITE"]] * 2

    captured.run(burst("TRUNCATE t, bag", "INSERT INTO t VALUES (1), (101)"))
    captured.run("INSERT INTO bag VALUES (2), (102);\n")
    run_pipeline(spark, captured)
    check_equal(spark, captured, "t", "bag")
    assert [table.since() for table in tables] == [["DELETE", "DELETE", "WRITE"]] * 2


@pytest.mark.slow
def test_soft_deletes(spark: SparkSession, captured: Captured) -> None:
    """What was there stays as deleted rows, so all of it counts, but for tables without a key."""
    sink = {"type": "delta", "path": str(captured.directory / "lake"), "soft_delete": True}
    captured.run("CREATE TABLE t (id int PRIMARY KEY, n int);\nCREATE TABLE bag (id int);\n")
    captured.run("INSERT INTO t VALUES (1, 1);\nINSERT INTO bag VALUES (1);\n")
    run_pipeline(spark, captured, sink=sink)
    table = Writes(captured, "bag")
    captured.run(
        burst(
            "INSERT INTO t VALUES (100 + {n}, {n}), (200, {n})",
            "INSERT INTO bag VALUES ({n})",
            "TRUNCATE t, bag",
        )
    )
    captured.run("INSERT INTO t VALUES (200, 0), (300, 0);\nINSERT INTO bag VALUES (2);\n")
    run_pipeline(spark, captured, sink=sink)
    shown = "NOT _pgtide_deleted"
    assert mirror(spark, captured, "t", shown) == [(200, 0), (300, 0)]
    deleted = [(1, 1), *((100 + n, n) for n in range(TRUNCATES))]
    assert mirror(spark, captured, "t", "_pgtide_deleted") == sorted(deleted, key=repr)
    check_equal(spark, captured, "bag")
    assert table.since() == ["DELETE", "WRITE"]


@pytest.mark.slow
def test_ddl_between(spark: SparkSession, captured: Captured) -> None:
    """Columns, names and whole tables change between two TRUNCATEs; names are exchanged."""
    captured.run(
        """CREATE TABLE a (id int PRIMARY KEY, n int);
CREATE TABLE b (id int PRIMARY KEY, n int);
CREATE TABLE c (id int PRIMARY KEY);
INSERT INTO a VALUES (1, 1), (2, 2);
INSERT INTO b VALUES (1, -1), (2, -2);
INSERT INTO c VALUES (1);
"""
    )
    run_pipeline(spark, captured)
    captured.run(
        """INSERT INTO a VALUES (3, 3);
INSERT INTO b VALUES (3, -3);
INSERT INTO c VALUES (3);
TRUNCATE a;
INSERT INTO a VALUES (4, 4);
ALTER TABLE a ADD x int DEFAULT 7;
INSERT INTO a VALUES (5, 5, 5);
ALTER TABLE a RENAME TO swapped;
ALTER TABLE b RENAME TO a;
ALTER TABLE swapped RENAME TO b;
INSERT INTO a VALUES (6, 6);
INSERT INTO b VALUES (7, 7);
TRUNCATE c;
DROP TABLE c;
CREATE TABLE c (id text, x int PRIMARY KEY);
INSERT INTO c VALUES ('a', 1);
CREATE TABLE made (id int PRIMARY KEY);
INSERT INTO made VALUES (1);
TRUNCATE b, made;
ALTER TABLE b ADD y int DEFAULT 8;
ALTER TABLE b RENAME n TO m;
INSERT INTO b VALUES (8, 8);
"""
    )
    for _ in range(2):
        run_pipeline(spark, captured)
        check_equal(spark, captured, "a", "b", "c", "made")
        captured.run("INSERT INTO made VALUES (9);\nTRUNCATE a, c;\nINSERT INTO c VALUES ('b', 2);")
        run_pipeline(spark, captured)
        check_equal(spark, captured, "a", "b", "c", "made")
        lose_checkpoint(captured, "lake")
        captured.run("TRUNCATE made;\nDELETE FROM c;\n")


@pytest.mark.slow
def test_without_ddl(spark: SparkSession, make_captured: MakeCaptured, database: Database) -> None:
    """Only rows tell of a table, be they void: it is there, under its name."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    captured = make_captured(database, ddl=False)
    captured.run(burst("INSERT INTO a VALUES ({n})", "TRUNCATE a"))
    run_pipeline(spark, captured)
    check_equal(spark, captured, "a")
    captured.run("INSERT INTO a VALUES (1);\nALTER TABLE a RENAME TO b;\nTRUNCATE b;\n")
    run_pipeline(spark, captured)
    assert mirror(spark, captured, "a") == []
    captured.run("INSERT INTO b VALUES (3);\nTRUNCATE b;\nINSERT INTO b VALUES (4);\n")
    run_pipeline(spark, captured)
    check_equal(spark, captured, "b")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_refreshed_between(spark: SparkSession, captured: Captured, key: str) -> None:
    """Rows that were read before the last TRUNCATE are void, sweeps behind it are not."""
    history = HistoryRows(captured)
    captured.run(f"CREATE TABLE t (id int {key});\nALTER TABLE t REPLICA IDENTITY FULL;\n")
    captured.run("INSERT INTO t VALUES (1), (2), (3);\n")
    run_pipeline(spark, captured)
    captured.run("INSERT INTO t VALUES (4);\n")
    history.ghosts("t", ["5"], ["6"])
    history.replace("t")
    captured.run("TRUNCATE t;\nINSERT INTO t VALUES (1), (4);\n")
    start = history.read("t")
    history.sweep("t", start)
    captured.run("TRUNCATE t;\n")
    history.ghosts("t", ["7"])
    captured.run("INSERT INTO t VALUES (2), (4);\n")
    history.replace("t")
    captured.run("INSERT INTO t VALUES (7);\n")
    for _ in range(2):
        run_pipeline(spark, captured)
        check_equal(spark, captured, "t")
        lose_checkpoint(captured, "lake")


@pytest.mark.slow
def test_other_batches(spark: SparkSession, captured: Captured) -> None:
    """Everything comes again, cut elsewhere, also inside transactions: nothing is doubled."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, n int);
CREATE TABLE bag (id int);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20);
"""
    )
    with captured.database.connect(autocommit=False) as connection:
        for n in range(3):
            for statement in (
                f"INSERT INTO t VALUES (2, {n}), (3, {n})",
                "INSERT INTO bag VALUES (1), (1), (2)",
                "DELETE FROM bag WHERE id = 2",
                "INSERT INTO parts VALUES (1), (11)",
                "TRUNCATE t, bag, low",
                f"INSERT INTO t VALUES (1, {n})",
                "INSERT INTO bag VALUES (3), (3)",
                "INSERT INTO parts VALUES (2), (12)",
            ):
                connection.execute(statement.encode())
            if n != 1:
                connection.commit()
    captured.run("TRUNCATE bag;\n")
    captured.capture()
    places = [Position(Lsn(row["lsn"]), row["seq"]) for row in captured.rows()]
    last = Position.end_of(places[-1].lsn)
    for every in (len(places), 7, 5, len(places)):
        with pytest.MonkeyPatch.context() as patch:
            cuts = [*places[every - 1 : -1 : every], last]
            patch.setattr(LogFrames, "cuts", lambda *_, cuts=cuts: cuts)
            run_pipeline(spark, captured)
        check_equal(spark, captured, "t", "bag", "parts")
        lose_checkpoint(captured, "lake")
