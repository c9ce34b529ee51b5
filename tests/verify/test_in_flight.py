"""Rows in flight: committed and logged, but not visible at the source yet."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pyspark.sql import SparkSession

from pgtide.postgres.visibility import Visibility
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until
from tests.verify.lake import lake_config, table_report, verify


def test_committed_but_not_visible(
    spark: SparkSession,
    make_server: MakeServer,
    make_captured: MakeCaptured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A synchronous standby that does not answer keeps a commit from becoming visible."""
    server = make_server(synchronous_standby_names="nobody", synchronous_commit="local")
    database = Database.create(server)
    captured = make_captured(database)
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE bag (a int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n;
INSERT INTO bag VALUES (1), (1), (2);
"""
    )
    config = lake_config(captured)
    assert all(table.equal for table in verify(spark, config).tables)

    def commit() -> None:
        with database.connect(autocommit=False) as connection:
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute("UPDATE t SET v = 'new' WHERE id = 7")
            connection.execute("UPDATE t SET id = 100 WHERE id = 8")
            connection.execute("DELETE FROM bag WHERE a = 2")
            connection.commit()

    thread = threading.Thread(target=commit)
    thread.start()
    hanging = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    try:
        wait_until(lambda: database.execute(hanging), "the commit to wait for the standby")
        report = verify(spark, config)
        found = table_report(report, "t")
        assert (found.equal, found.in_flight, found.rows) == (True, 3, 48)
        found = table_report(report, "bag")
        assert (found.equal, found.in_flight, found.rows) == (True, 1, 2)
        with monkeypatch.context() as naive:
            naive.setattr(Visibility, "hides", lambda self, xids: np.zeros(len(xids), bool))
            found = table_report(verify(spark, config), "t")
            assert (found.missing, found.extra, found.different) == (1, 1, 1)
    finally:
        database.execute(f"SELECT pg_cancel_backend(pid) FROM ({hanging}) AS waiting")
        thread.join(30)
    assert all(table.equal for table in verify(spark, config).tables)


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_ids_of_32_bits_are_widened(epoch: int) -> None:
    xmax = (epoch << 32) + 5
    visibility = Visibility(xmax - 7, xmax, ((epoch << 32) - 2, (epoch << 32) + 3))
    hidden = visibility.hides(np.array([4, 3, 5, 6, 2, 2**32 - 1, 2**32 - 2]))
    assert hidden.tolist()[:5] == [False, True, True, True, False]
    if epoch:
        assert hidden.tolist()[5:] == [False, True]
