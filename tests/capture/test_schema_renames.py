"""Rows stand under the name that their schema has at their place in the log.

Servers before 16 do not announce tables anew when their schema is renamed; and every server
announces rows that were written before under the old name, though they follow the command.
"""

from __future__ import annotations

import pytest

from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database

TABLES = """
CREATE SCHEMA one;
CREATE SCHEMA apart;
CREATE TABLE one.t (id int PRIMARY KEY, v text);
CREATE TABLE one.root (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE apart.leaf PARTITION OF one.root FOR VALUES FROM (0) TO (100);
INSERT INTO one.t VALUES (1);
INSERT INTO one.root VALUES (1);
"""
FIRST = [("one", "t", ""), ("apart", "leaf", "one")]
RENAME = "ALTER SCHEMA one RENAME TO two;\n"
ROWS = "INSERT INTO two.t VALUES (2);\nINSERT INTO two.root VALUES (2);\n"
SECOND = [("two", "t", ""), ("apart", "leaf", "two")]


def check_names(captured: Captured, expected: list[tuple[str, str, str]]) -> None:
    """Schema, table and root's schema of each row; all of them know their columns."""
    rows = captured.events("insert", "update", "delete")
    found = [(row.schema, row.table, row.shape.root_schema) for row in rows if row.shape]
    assert found == expected
    assert all(column.attnum for row in rows if row.shape for column in row.shape.columns)
    captured.check_log()


@pytest.mark.parametrize("gear", ["live", "bulk"])
def test_rows_of_a_renamed_schema(
    version_database: Database, make_captured: MakeCaptured, gear: str
) -> None:
    captured = make_captured(version_database)
    captured.run(f"{TABLES}{RENAME}{ROWS}ALTER SCHEMA two RENAME TO three;\nTRUNCATE three.t;\n")
    captured.capture(gear)
    check_names(captured, [*FIRST, *SECOND])
    (truncated,) = captured.events("truncate")
    assert (truncated.schema, truncated.table) == ("three", "t")


@pytest.mark.parametrize("confirmed", [True, False])
def test_capture_begins_anew_behind_a_rename(
    version_database: Database, make_captured: MakeCaptured, confirmed: bool
) -> None:
    """Where it was not confirmed, tables are announced in transactions that are in the log."""
    captured = make_captured(version_database)
    captured.run(TABLES + RENAME)
    if confirmed:
        captured.capture("live")
    else:
        captured.killed("bulk", "after_commit:1")
    captured.run(ROWS)
    progress = captured.capture("live")
    check_names(captured, [*FIRST, *SECOND])
    assert progress.counters["unseen_ddl"] == 0


def write_around_a_rename(captured: Captured, *, restart: bool) -> None:
    captured.run(TABLES)
    with captured.database.connect(autocommit=False) as writing:
        writing.execute("UPDATE one.t SET v = 'x'")
        writing.execute("DELETE FROM one.root")
        captured.run(RENAME)
        if restart:
            captured.capture("live")
        writing.execute("INSERT INTO two.t VALUES (2)")
        writing.commit()
    captured.run(ROWS.replace("(2)", "(3)"))
    progress = captured.capture("live")
    before = [("two", "t", ""), ("apart", "leaf", "two"), ("two", "t", "")]
    check_names(captured, [*FIRST, *before, *SECOND])
    assert progress.counters["unseen_ddl"] == 0


@pytest.mark.parametrize("restart", [True, False])
def test_rows_written_before_a_rename_and_committed_behind(
    captured: Captured, restart: bool
) -> None:
    write_around_a_rename(captured, restart=restart)


@pytest.mark.parametrize("restart", [True, False])
def test_rows_written_before_a_rename_on_every_release(
    version_database: Database, make_captured: MakeCaptured, restart: bool
) -> None:
    write_around_a_rename(make_captured(version_database), restart=restart)


def test_without_event_triggers_the_server_alone_tells(
    version_database: Database, make_captured: MakeCaptured
) -> None:
    """Before 16 it does so when capture connects again, or when the table itself changes."""
    version_database.execute(TABLES)
    captured = make_captured(version_database, ddl=False)
    captured.run(f"INSERT INTO one.t VALUES (3);\n{RENAME}{ROWS}")
    captured.capture("live")
    captured.run("INSERT INTO two.t VALUES (4)")
    captured.capture("live")
    names = [(row.schema, row.table) for row in captured.events("insert")]
    ((release,),) = version_database.execute("SHOW server_version_num")
    late = "two" if int(release) >= 160_000 else "one"
    assert names == [("one", "t"), (late, "t"), ("apart", "leaf"), ("two", "t")]
