"""What is read of both sides: a sample, ranges that differ, tables as they are by now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pgtide.postgres.connection import SqlConnection
from pgtide.verify import ranges
from pgtide.verify.comparing import Pace
from pgtide.verify.logged_keys import Window
from pgtide.verify.postgres_side import PostgresTable, Row
from pgtide.verify.ranges import Ranges, sampled
from pgtide.verify.report import Difference
from pgtide.verify.verifying import Verification
from tests.verify.lake import table_report
from tests.verify.replica import Replica, equal

TABLES = """CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE named (name text PRIMARY KEY, v text);
"""
ROWS = 2000


@pytest.fixture
def filled(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """Two equal tables in many small ranges."""
    monkeypatch.setattr(ranges, "ROWS_PER_RANGE", 10)
    replica.run(TABLES)
    replica.captured.execute(f"INSERT INTO t SELECT n, n FROM generate_series(1, {ROWS}) n")
    replica.captured.execute("INSERT INTO named SELECT 'n' || id, v FROM t; ANALYZE t, named")
    replica.fill("t", "named")
    return replica


@pytest.mark.slow
def test_a_sample_is_a_share_of_the_rows(filled: Replica) -> None:
    """Equal where the tables are, the same rows for the same seed; all seeds together find all."""
    filled.plant("DELETE FROM t WHERE id = 777", "UPDATE named SET v = '' WHERE name = 'n778'")
    found: dict[str, set[int]] = {"t": set(), "named": set()}
    for seed in "abcd":
        report = filled.verify(sample=0.3, seed=seed)
        for name, counts in found.items():
            table = table_report(report, name)
            assert 0.1 * ROWS < table.rows < 0.6 * ROWS, (name, seed)
            counts.add(table.differing)
    assert found == {"t": {0, 1}, "named": {0, 1}}
    first, again = (filled.verify(sample=0.3, seed="a") for _ in range(2))
    assert [one.rows for one in first.tables] == [one.rows for one in again.tables]


def test_shares_of_ranges() -> None:
    numbers = range(-2048, 2048)
    assert 0.25 < len(sampled(numbers, 0.3, "s")) / len(numbers) < 0.35
    assert sampled(numbers, 1.0, "s") == list(numbers)
    assert len(sampled(range(3), 1e-9, "s")) == 1, "never nothing"


def test_only_ranges_that_differ_are_read_row_by_row(
    filled: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    rows = PostgresTable.rows

    def counted(
        self: PostgresTable, connection: SqlConnection, cut: Ranges, numbers: Sequence[int]
    ) -> Iterator[Row]:
        for row in rows(self, connection, cut, numbers):
            read.append(1)
            yield row

    monkeypatch.setattr(PostgresTable, "rows", counted)
    assert equal(filled.verify(), ["named", "t"])
    assert not read
    filled.plant("DELETE FROM t WHERE id = 777")
    assert table_report(filled.verify(), "t").missing == 1
    assert 0 < len(read) < 100


def test_no_faster_than_it_may() -> None:
    began, pace = time.monotonic(), Pace(rate=1000)
    for _ in range(3):
        pace.passed(100)
    assert time.monotonic() - began >= 0.3


@pytest.mark.slow
def test_tables_that_are_dropped_or_renamed_meanwhile(
    filled: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of tables and the lock: the others are compared all the same."""
    filled.run("CREATE TABLE gone (id int PRIMARY KEY);\nCREATE TABLE old (id int PRIMARY KEY);\n")
    filled.captured.execute("INSERT INTO old VALUES (1)")
    filled.fill("t", "named", "gone", "old")
    catch_up, changes = Verification._catch_up, ["DROP TABLE gone", "ALTER TABLE old RENAME TO new"]

    def changing(self: Verification, tables: Any) -> None:
        if changes:
            filled.run(f"{changes.pop()};\n{changes.pop()};\n")
            filled.fill("t", "named", "new")
        catch_up(self, tables)

    monkeypatch.setattr(Verification, "_catch_up", changing)
    report = filled.verify()
    assert not changes
    gone, named, new, t = report.tables
    assert (gone.table, gone.refused) == ("public.gone", "it was dropped meanwhile")
    assert [(one.table, one.equal) for one in (named, new, t)] == [
        ("public.named", True),
        ("public.new", True),
        ("public.t", True),
    ]


def test_keys_of_an_extension(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found again by the operators of their own type, to which no search path leads."""
    replica.run(
        "CREATE EXTENSION vector;\n"
        "CREATE TABLE t (v vector(2), n int, w text, PRIMARY KEY (v, n));\n"
    )
    replica.captured.execute(
        "INSERT INTO t SELECT format('[%s,1]', i)::vector, i, 'w' FROM generate_series(1, 9) i"
    )
    replica.fill("t")
    replica.plant("UPDATE t SET w = 'x' WHERE n = 7", "DELETE FROM t WHERE n = 8")
    (table,) = replica.verify().tables
    assert table.differences == [
        Difference("different", ("[7,1]", "7"), ("w",)),
        Difference("missing", ("[8,1]", "8")),
    ]
    # As if all of them had been changed meanwhile.
    with monkeypatch.context() as patch:
        patch.setattr(Window, "holds", lambda self, numbers: np.ones(len(numbers), bool))
        (table,) = replica.verify().tables
    assert (table.differing, table.in_flight, table.rows) == (0, 9, 0)
