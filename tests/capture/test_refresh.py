"""Refresh: rows read again while everything runs, in their place among the changes."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database


def store_of(captured: Captured) -> RefreshStore:
    return RefreshStore(Storage(captured.config.log.path, captured.config.log.storage))


def refresh(captured: Captured, table: str = "public.t", **limits: Any) -> Refresh:
    request = Refresh(table, **limits)
    store_of(captured).add(request)
    return request


def reads(captured: Captured) -> list[dict[str, Any]]:
    return [dict(event.after or {}) for event in captured.events("read")]


@pytest.fixture
def filled(database: Database, make_captured: MakeCaptured) -> Captured:
    """A table with rows that the log does not have."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, 'old ' || i FROM generate_series(1, 5000) i")
    return make_captured()


def test_all_rows_of_a_table(filled: Captured) -> None:
    request = refresh(filled)
    filled.capture()
    standing = store_of(filled).standing(request.id)
    assert (standing.state, standing.rows, standing.dropped) == ("done", 5000, 0)
    found = reads(filled)
    assert sorted(int(row["id"]) for row in found) == list(range(1, 5001))
    assert {row["v"] for row in found} == {f"old {i}" for i in range(1, 5001)}
    filled.check_log()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"where": "id % 1000 = 0 -- every thousandth"}, [1000, 2000, 3000, 4000, 5000]),
        ({"low": "4998"}, [4998, 4999, 5000]),
        ({"low": "2", "high": "4"}, [2, 3, 4]),
        ({"keys": (("7",), ("4711",), ("9999",))}, [7, 4711]),
    ],
)
def test_some_rows_of_a_table(
    filled: Captured, limits: dict[str, Any], expected: list[int]
) -> None:
    refresh(filled, **limits)
    filled.capture()
    assert sorted(int(row["id"]) for row in reads(filled)) == expected
