"""What runs on an executor: read chunks by COPY, write them as parts of the log.

A task has its own connection, imports the keeper's snapshot, and returns the ``add`` actions
of the files it wrote. Nothing of it is true before the driver commits them. What fails comes
back as a value: through Spark's own exceptions it would arrive as a text of Java's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import psycopg
from deltalake.transaction import AddAction
from psycopg import sql

from pgtide.capture.faults import fault
from pgtide.errors import PgtideError
from pgtide.log.schema import CHANGES
from pgtide.log.storage import Storage, unavailable
from pgtide.position import Lsn
from pgtide.postgres.connection import SqlConnection, connect, no_timeouts, translate
from pgtide.snapshot.chunks import Chunk
from pgtide.snapshot.copying import copy_pages
from pgtide.snapshot.keeper import APPLICATION
from pgtide.snapshot.read_parts import ReadParts
from pgtide.snapshot.read_rows_file import SameRows

OWN_FILE_BYTES = 8 << 20  # of a file, compressed, after which the next table gets its own


@dataclass(frozen=True)
class Copier:
    """Callable on a partition of units. It holds secrets: only ever part of a task's closure."""

    url: str = field(repr=False)
    snapshot: str
    log_path: str
    storage: dict[str, str] = field(repr=False)
    lsn: Lsn
    taken_at: datetime
    rows_per_second: float | None = None  # of this task

    def __call__(self, units: Iterable[list[Chunk]]) -> Iterator[Outcome]:
        _keep_modules()
        for unit in units:
            try:
                yield self._copy(unit)
            except PgtideError as error:
                yield Outcome(error=error)
            except OSError as error:
                yield Outcome(error=unavailable(error))

    def _copy(self, unit: list[Chunk]) -> Outcome:
        changes = Storage(self.log_path, self.storage).child(CHANGES)
        parts = ReadParts(changes)
        rows: dict[int, int] = {}
        pace = _Pace(self.rows_per_second)
        with connect(self.url, application_name=APPLICATION) as conn:
            try:
                self._begin(conn)
                for chunk in unit:
                    rows[chunk.number] = self._copy_chunk(conn, chunk, parts, pace)
            except psycopg.Error as exc:
                raise translate(exc) from exc
        outcome = Outcome(rows, parts.finish())
        fault("snapshot_part")
        return outcome

    def _begin(self, conn: SqlConnection) -> None:
        conn.execute("SET row_security = off")  # an error where it would hide rows
        no_timeouts(conn)
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot)))

    def _copy_chunk(self, conn: SqlConnection, chunk: Chunk, parts: ReadParts, pace: _Pace) -> int:
        same = SameRows(int(self.lsn), self.taken_at, chunk.schema, chunk.table, chunk.shape)
        seq = chunk.seq
        for page in copy_pages(conn, chunk.query(), len(chunk.columns)):
            parts.add(page, same, seq)
            seq += page.rows
            pace.keep(page.rows)
        # One table to a row group, and large ones to a file: readers of the others skip it.
        parts.end_group(same, seq)
        parts.end_file(OWN_FILE_BYTES)
        return seq - chunk.seq


@dataclass(frozen=True)
class Outcome:
    """Rows by number of chunk, and the files that hold them; or why there are none."""

    rows: dict[int, int] = field(default_factory=dict)
    parts: list[AddAction] = field(default_factory=list)
    error: PgtideError | None = None


@cache
def _keep_modules() -> None:
    """Have what is loaded by now, and never goes, left out when garbage is collected.

    PySpark does that after every task, and it took a tenth of a second.
    """
    gc.freeze()


class _Pace:
    """Holds back a task that reads faster than it may."""

    def __init__(self, rows_per_second: float | None) -> None:
        self._rate = rows_per_second
        self._due = time.monotonic()

    def keep(self, rows: int) -> None:
        if self._rate is None:
            return
        self._due = max(self._due, time.monotonic() - 1.0) + rows / self._rate
        time.sleep(max(0.0, self._due - time.monotonic()))
