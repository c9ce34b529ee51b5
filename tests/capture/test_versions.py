"""The core of capture on every supported release."""

from __future__ import annotations

import pytest

from pgtide.log.event import UNCHANGED
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.workload import Workload, check_workload


@pytest.mark.parametrize("gear", ["live", "bulk", None])
def test_rows_and_commands(
    version_database: Database, make_captured: MakeCaptured, gear: str | None
) -> None:
    captured = make_captured(version_database)
    captured.run(
        """
        CREATE TABLE t (id int PRIMARY KEY, a text, big text);
        INSERT INTO t SELECT 1, '', string_agg(md5(n::text), '') FROM generate_series(1, 999) n;
        UPDATE t SET a = NULL;
        UPDATE t SET id = 2;
        ALTER TABLE t RENAME COLUMN a TO b;
        SELECT pg_logical_emit_message(true, 'app', 'hello');
        SELECT pg_logical_emit_message(false, 'app', 'hello');
        DELETE FROM t;
        CREATE TABLE copy AS SELECT 1 AS id;
        TRUNCATE t, copy;
        DROP TABLE t;
        """
    )
    captured.capture(gear)
    captured.check_log()
    ops = [event.op for event in captured.events()]
    assert ops == [
        *("ddl", "insert", "update", "update", "ddl", "message", "message", "delete"),
        *("insert", "ddl", "truncate", "truncate", "ddl"),
    ]
    changes = captured.changes("t")
    assert changes[1] == ("update", None, {"id": "1", "a": None, "big": UNCHANGED})
    assert changes[2] == ("update", {"id": "1"}, {"id": "2", "a": None, "big": UNCHANGED})
    assert changes[3] == ("delete", {"id": "2"}, None)


def test_load_and_restarts(version_database: Database, make_captured: MakeCaptured) -> None:
    captured = make_captured(version_database)
    captured.execute(Workload.TABLES)
    with Workload(version_database):
        for count, gear in enumerate(["live", "bulk", "live", "bulk"]):
            captured.killed(gear, f"{'after_commit' if count < 2 else 'after_data_file'}:2")
    captured.capture()
    assert check_workload(captured) > 100


def test_the_least_rights(version_database: Database, make_captured: MakeCaptured) -> None:
    version_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    url = version_database.create_role("LOGIN REPLICATION")
    captured = make_captured(version_database, url=url, admin_url=version_database.url)
    captured.execute("INSERT INTO t VALUES (1)")
    captured.capture("bulk")
    captured.execute("ALTER TABLE t ADD COLUMN v text")
    captured.execute("INSERT INTO t VALUES (2, 'x')")
    captured.capture("live")
    assert [e.op for e in captured.events()] == ["insert", "ddl", "insert"]
