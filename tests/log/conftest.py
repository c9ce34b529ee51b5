"""Small logs for tests: rows are given by position and table, the rest is filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction

from pgtide.log.reader import Log
from pgtide.log.schema import CHANGES, FILE_SCHEMA
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter, create_log
from pgtide.position import Lsn
from pgtide.shape import Column, Shape

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

ORDERS = Shape(
    oid=1001,
    schema="public",
    table="orders",
    columns=(
        Column("id", 20, type_name="bigint", attnum=1, nullable=False, key=True, identity=True),
        Column("note", 25, type_name="text", attnum=2),
        Column("total", 1700, type_name="numeric(10,2)", attnum=3),
    ),
)
FULL = Shape(
    oid=1002,
    schema="public",
    table="events",
    columns=(
        Column("id", 23, type_name="integer", attnum=1, key=True, identity=True),
        Column("body", 3802, type_name="jsonb", attnum=2, identity=True),
    ),
    replica_identity="f",
)


def make_rows(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows of the log; ``lsn`` is needed, everything else has a default."""
    default: dict[str, Any] = {
        "seq": 0,
        "xid": 7,
        "committed_at": NOON,
        "op": "insert",
        "schema": "public",
        "table": "orders",
        "shape": 1,
        "after": ["1", "a note", "9.50"],
        "last": True,
    }
    return pa.Table.from_pylist([{**default, **row} for row in rows], schema=FILE_SCHEMA)


@dataclass
class SmallLog:
    """A log in a directory, with its writer."""

    path: str
    writer: LogWriter
    storage: Storage = field(init=False)
    changes: Storage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.path)
        self.changes = self.storage.child(CHANGES)

    def append(
        self, rows: Iterable[dict[str, Any]], logged_at: datetime | None = None
    ) -> list[AddAction]:
        """Commit rows; the log's position becomes the last LSN plus one.

        They count as logged when the last of them was committed, unless it is said.
        """
        table = make_rows(rows)
        committed: list[Any] = table.column("committed_at").drop_null().to_pylist()
        at = logged_at or [NOON, *committed][-1]
        parts = [
            replace(part, modification_time=int(at.timestamp() * 1000))
            for part in self.writer.write_part(table)
        ]
        last = max(table.column("lsn").to_numpy(), default=int(self.writer.position))
        self.writer.commit(parts, Lsn(last + 1), 1)
        return parts

    def commit_each(self, count: int, first: int = 1000, **fields: Any) -> None:
        """``count`` commits of one transaction with two rows each."""
        for lsn in range(first, first + 10 * count, 10):
            self.append([{"lsn": lsn, "seq": seq, **fields} for seq in (0, 1)])

    def open(self) -> Log:
        return Log(self.path)

    def positions(self) -> list[tuple[int, int]]:
        """All positions, in the order in which the log is read."""
        return [(int(e.position.lsn), e.position.seq) for e in self.open().events()]


@pytest.fixture
def make_log(tmp_path: Path) -> Callable[[], SmallLog]:
    def make(name: str = "log") -> SmallLog:
        path = str(tmp_path / name)
        create_log(
            path,
            system_identifier="7300000000000000001",
            database="shop",
            slot="pgtide",
            start=Lsn(500),
            timeline=1,
            baseline=[ORDERS, FULL],
        )
        return SmallLog(path, LogWriter(path, None, "pgtide"))

    return make


@pytest.fixture
def small_log(make_log: Callable[[], SmallLog]) -> SmallLog:
    return make_log()


@pytest.fixture
def day_later() -> datetime:
    return NOON + timedelta(days=1)
