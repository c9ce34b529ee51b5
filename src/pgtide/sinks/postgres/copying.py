"""Lines from Spark's tasks into stages, in whole buffers.

What runs on an executor gets batches of Arrow and hands their bytes to COPY. A task is one
transaction with a number of its own, which the driver learns only when the task has succeeded.
What fails comes back as a value: through Spark's own exceptions it would arrive as a text. Of rows
that the target refuses it is the first one, with its key.
"""

from __future__ import annotations

import gc
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pgtide.errors import LogError, PgtideError
from pgtide.log.storage import unavailable
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.failures import TableRefused, is_of_a_row, target_error
from pgtide.sinks.postgres.refused_lines import (
    Destination,
    LineRefused,
    fields_of,
    find_refused,
    send,
)
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.stages import LOAD, position_of
from pgtide.spark.arrow_tasks import map_in_arrow
from pgtide.spark.few_tasks import in_few_tasks

FLUSH_BYTES = 4 << 20  # of one stage, before they are sent
_RESULT = "load long, rows long, error binary"
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("load", pa.int64()),
    ("rows", pa.int64()),
    ("error", pa.binary()),
]
_SCHEMA = pa.schema(_FIELDS)

Outcome: TypeAlias = tuple[int, int, bytes]
"""What a task tells the driver: its load, how many rows that has, and a failure in its place."""

Refusal: TypeAlias = Callable[[LineRefused], TableRefused]

_connections: dict[str, SqlConnection] = {}
"""Of this worker: it is used for many batches, and connecting takes longer than most of them."""


@dataclass(frozen=True)
class Copier:
    """Callable on the batches of a partition. It holds secrets: part of a task's closure only."""

    url: str = field(repr=False)
    destinations: Mapping[int, Destination]  # by stage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        load = new_load()

        def copy() -> int:
            with staging(self.url, load) as connection:
                return copy_lines(connection, batches, self.destinations)

        told = outcome(load, copy, staged_refusal(self.destinations), "rows are staged")
        yield pa.record_batch([[value] for value in told], schema=_SCHEMA)


def new_load() -> int:
    """A number for the rows of a task that nobody else has."""
    return secrets.randbits(62)


@contextmanager
def staging(url: str, load: int) -> Iterator[SqlConnection]:
    """A transaction whose rows in stages are of a load."""
    with worker_session(url) as connection, connection.transaction():
        connection.execute("SELECT set_config(%s, %s, true)", [LOAD, str(load)])
        yield connection


def staged_refusal(destinations: Mapping[int, Destination]) -> Refusal:
    """What to say of a line that a stage does not take."""

    def refusal(refused: LineRefused) -> TableRefused:
        position = position_of(fields_of(refused.line))
        return destinations[refused.stage].refusal(refused.line, position, refused.error)

    return refusal


def outcome(load: int, copy: Callable[[], int], refusal: Refusal, doing: str) -> Outcome:
    """What a task tells of its copy: how many rows that brought, or why it failed."""
    try:
        return load, copy(), b""
    except LineRefused as refused:
        failure: Exception = refusal(refused)
    except psycopg.Error as error:
        failure = target_error(error, doing)
    except OSError as error:
        failure = unavailable(error)
    except pa.ArrowInvalid as error:
        failure = LogError(
            "a data file of the log cannot be read",
            detail=f"{type(error).__name__}, while {doing}.",
            hint="The log is damaged: restore it from a backup or start a new one.",
        )
    except PgtideError as error:
        failure = error
    return load, 0, pickle.dumps(failure)


def stage_lines(
    lines: DataFrame, url: str, destinations: Mapping[int, Destination]
) -> tuple[list[int], int]:
    """Copy lines into their stages; the loads that count, and how many rows they have.

    TableRefused for a row that the target does not take, be it in a stage.
    """
    # A batch with much DDL has a part for each layout of a table; a task costs more than its rows.
    copier = Copier(url, dict(destinations))
    return finished(map_in_arrow(in_few_tasks(lines), copier, _RESULT).collect())


def finished(tasks: Sequence[Outcome]) -> tuple[list[int], int]:
    """The loads of tasks that have ended, and how many rows they have; the first failure."""
    for _, _, failure in tasks:
        if failure:
            raise pickle.loads(failure)
    return [load for load, _, _ in tasks], sum(rows for _, rows, _ in tasks)


def copy_lines(
    connection: SqlConnection,
    batches: Iterable[pa.RecordBatch],
    destinations: Mapping[int, Destination],
) -> int:
    """Send each line where it belongs; how many that were. Batches have stages and lines."""
    waiting: dict[int, Lines] = {}
    rows = 0
    for batch in batches:
        stages, lines = batch.column(0), batch.column(1)
        rows += len(lines)
        for one in pc.unique(stages):
            stage: int = one.as_py()
            mine = waiting.setdefault(stage, Lines(stage, destinations[stage].command))
            chosen = lines.filter(pc.equal(stages, one))
            mine.add(connection, _bytes(chosen), len(chosen))
    for mine in waiting.values():
        mine.flush(connection)
    return rows


@dataclass
class Lines:
    """Lines of one destination on their way, sent when there are enough of them."""

    stage: int
    command: str  # COPY … FROM STDIN
    sent: int = 0  # lines
    lines: int = 0  # that wait
    size: int = 0  # bytes that wait
    waiting: list[memoryview] = field(default_factory=list)

    def add(self, connection: SqlConnection, text: memoryview, lines: int) -> None:
        """Whole lines; LineRefused as ``flush``."""
        self.waiting.append(text)
        self.lines += lines
        self.size += len(text)
        if self.size >= FLUSH_BYTES:
            self.flush(connection)

    def flush(self, connection: SqlConnection) -> None:
        """Send what waits; LineRefused for a line that the target does not take."""
        if not self.waiting:
            return
        try:
            send(connection, self.command, self.waiting)
        except psycopg.Error as error:
            if not is_of_a_row(error):
                raise
            # A newline inside of a value is written as two other characters.
            lines = [line + b"\n" for line in b"".join(self.waiting).split(b"\n")[:-1]]
            found = find_refused(connection, self.command, lines)
            if found is None:
                raise
            number, why = found
            raise LineRefused(self.stage, self.sent + number, lines[number], why) from error
        self.sent += self.lines
        self.waiting, self.lines, self.size = [], 0, 0


def _bytes(lines: Any) -> memoryview:
    """All lines of an array that ``filter`` has made, one behind the other as they lie there."""
    text = lines.buffers()[2]
    assert text is not None, "a line is not empty"
    return memoryview(text)[: pc.sum(pc.binary_length(lines)).as_py()]


@contextmanager
def worker_session(url: str) -> Iterator[SqlConnection]:
    """The worker's connection, opened anew when it has gone bad."""
    known = _connections.get(url)
    if known is None or known.closed or known.broken or not _answers(known):
        known = _connections[url] = connect_target(url, "pgtide stage")
        # What a crash of the server takes away, notes about it included, is not counted: the
        # driver's own commit, which says how far the target is, waits for all before it.
        known.execute("SET synchronous_commit = off")
    try:
        yield known
    except BaseException:
        _connections.pop(url).close()
        raise
    if not gc.get_freeze_count():
        # Spark has all objects looked through after each task: 50 ms for those of the modules.
        # Once: what is waste by then, as after an error, would never be found again.
        gc.freeze()


def _answers(connection: SqlConnection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        connection.close()
        return False
    return True
