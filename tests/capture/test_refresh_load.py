"""Refreshes on every release of Postgres, and under many writers."""

from __future__ import annotations

import subprocess

import pytest

from tests.capture.replayed import replay
from tests.capture.test_refresh import refresh, store_of, wait_for
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database

SECONDS = 20


def accounts(captured: Captured) -> dict[str, str]:
    found = replay(captured.events(), "pgbench_accounts", ("aid",))
    return {key[0]: row["abalance"] for key, row in found.items()}


def pgbench(database: Database, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(database.server.psql_tools / "pgbench"), *arguments, database.url]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_32_writers_do_not_starve_it(database: Database, make_captured: MakeCaptured) -> None:
    assert pgbench(database, "-i", "-q", "-s", "1").wait() == 0
    captured = make_captured(tables=["public.pgbench_accounts"])
    with captured.capturing() as running:
        writers = pgbench(database, "-n", "-c", "32", "-j", "2", "-T", str(SECONDS))
        rounds = 0
        while writers.poll() is None:
            request = refresh(captured, "public.pgbench_accounts", chunk_rows=2000, max_rate=0)
            wait_for(captured)
            rounds += 1
        assert writers.wait() == 0
        running.wait(flushed(database), 60)
    assert rounds > 1, "one after the other, while 32 clients write"
    assert store_of(captured).standing(request.id).rows > 0
    captured.check_log()
    held = dict(database.execute("SELECT aid::text, abalance::text FROM pgbench_accounts"))
    assert accounts(captured) == held


@pytest.mark.slow
def test_each_release(version_database: Database, make_captured: MakeCaptured) -> None:
    database = version_database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, 'old ' || i FROM generate_series(1, 5000) i")
    captured = make_captured(database)
    refresh(captured, replace=True, chunk_rows=300)
    with captured.capturing() as running:
        for i in range(1, 5000, 50):
            database.execute("UPDATE t SET v = 'new' WHERE id = %s", [i])
            database.execute("UPDATE t SET id = -id WHERE id = %s", [i + 1])
        wait_for(captured)
        running.wait(flushed(database))
    found = replay(captured.events(), "t", ("id",), ghosts=["9999"])
    held = dict(database.execute("SELECT id::text, v FROM t"))
    assert {key[0]: row["v"] for key, row in found.items()} == held
