"""How far a snapshot is, table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pgtide.position import Lsn
from pgtide.snapshot.chunks import Chunk

Stage = Literal[
    "waiting",
    "locking",
    "reading the schema",
    "catching up",
    "copying",
    "committing",
    "done",
]


@dataclass(slots=True)
class TableProgress:
    """Pages read, of how many; and rows found in them."""

    bytes: int = 0
    bytes_done: int = 0
    rows: int = 0


@dataclass(slots=True)
class SnapshotProgress:
    """Handed to ``on_progress`` whenever something has changed."""

    stage: Stage = "locking"
    point: Lsn = Lsn(0)
    tables: dict[str, TableProgress] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    copying_since: float = 0.0  # time.monotonic()

    def plan(self, names: Iterable[str], chunks: Iterable[Chunk]) -> None:
        """Everything that is to be read."""
        self.tables = {name: TableProgress() for name in names}
        for chunk in chunks:
            self.tables[_name(chunk)].bytes += chunk.bytes
        self.copying_since = time.monotonic()

    def copied(self, chunk: Chunk, rows: int) -> None:
        """One chunk is on disk."""
        table = self.tables[_name(chunk)]
        table.bytes_done += chunk.bytes
        table.rows += rows

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables.values())

    @property
    def bytes_done(self) -> int:
        return sum(table.bytes_done for table in self.tables.values())

    @property
    def seconds(self) -> float:
        """Since copying began."""
        return time.monotonic() - self.copying_since

    @property
    def seconds_left(self) -> float | None:
        """By the rate so far; None while nothing is known."""
        done = self.bytes_done
        return self.seconds * (self.bytes - done) / done if done else None


OnProgress = Callable[[SnapshotProgress], None]


def _name(chunk: Chunk) -> str:
    return f"{chunk.schema}.{chunk.table}"
