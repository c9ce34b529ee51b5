"""The initial snapshot: what was there, in one commit, and the stream right behind it."""

from __future__ import annotations

from pyspark.sql import SparkSession

import pgtide
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.snapshot.taking import final_message, reads, source, take


def test_rows_that_were_there(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', n % 200) FROM generate_series(1, 5000) n")
    captured = make_captured(database, snapshot="initial")
    # Where the server ends transactions that are idle for long, those of a snapshot last.
    name = captured.execute("SELECT current_database()")[0][0]
    limit = f"ALTER DATABASE \"{name}\" SET idle_in_transaction_session_timeout = '50ms'"
    database.execute(limit)
    database.execute("UPDATE t SET note = NULL WHERE id <= 10")
    progress = take(captured, spark, chunk_bytes="64kB", parallelism=2)
    assert progress.tables["public.t"].bytes > 5 * 65536
    assert reads(captured, "t") == source(captured, "SELECT id::text, note FROM t")
    rows = captured.check_log()
    assert {row["lsn"] for row in rows} == {progress.point - 1}
    assert {(row["op"], row["xid"]) for row in rows} == {("read", None), ("message", None)}
    assert final_message(captured) == {"tables": {"public.t": 5000}}
    log = captured.log.snapshot()
    assert (log.position, log.history) == (progress.point, progress.point)
    assert captured.confirmed() == progress.point
    database.execute("DELETE FROM t WHERE id > 20")
    database.execute("UPDATE t SET note = 'y' WHERE id = 20")
    captured.capture()
    captured.check_log()
    latest = pgtide.latest(spark, captured.config.log.path, "t")
    found = sorted((row.id, row.note) for row in latest.select("id", "note").collect())
    assert found == sorted(captured.execute("SELECT id, note FROM t"))
    assert captured.log.snapshot().history == progress.point
