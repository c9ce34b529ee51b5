"""Lines from Spark's tasks into stages, in whole buffers.

What runs on an executor gets batches of Arrow and hands their bytes to COPY. A task is one
transaction with a number of its own, which the driver learns only when the task has succeeded.
What fails comes back as a value: through Spark's own exceptions it would arrive as a text.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pgtide.errors import PgtideError
from pgtide.postgres.connection import SqlConnection
from pgtide.sinks.postgres.failures import target_error
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.stages import LOAD
from pgtide.spark.arrow_tasks import map_in_arrow

FLUSH_BYTES = 4 << 20  # of one stage, before they are sent
RESULT = "load long, rows long, error binary"
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("load", pa.int64()),
    ("rows", pa.int64()),
    ("error", pa.binary()),
]
_SCHEMA = pa.schema(_FIELDS)

_connections: dict[str, SqlConnection] = {}
"""Of this worker: it is used for many batches, and connecting takes longer than most of them."""


@dataclass(frozen=True)
class Copier:
    """Callable on the batches of a partition. It holds secrets: part of a task's closure only."""

    url: str = field(repr=False)
    commands: Mapping[int, str]  # by stage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        load, rows, failure = secrets.randbits(62), 0, b""
        try:
            with worker_session(self.url) as connection, connection.transaction():
                connection.execute("SELECT set_config(%s, %s, true)", [LOAD, str(load)])
                rows = copy_lines(connection, batches, self.commands)
        except psycopg.Error as error:
            failure = pickle.dumps(target_error(error, "rows are staged"))
        except PgtideError as error:
            failure = pickle.dumps(error)
        yield outcome(load, rows, failure)


def stage_lines(lines: DataFrame, url: str, commands: Mapping[int, str]) -> tuple[list[int], int]:
    """Copy lines into their stages; the loads that count, and how many rows they have."""
    return finished(map_in_arrow(lines, Copier(url, dict(commands)), RESULT))


def outcome(load: int, rows: int, failure: bytes) -> pa.RecordBatch:
    """What a task tells the driver."""
    return pa.record_batch([[load], [rows], [failure]], schema=_SCHEMA)


def finished(tasks: DataFrame) -> tuple[list[int], int]:
    """Run tasks to their end: their loads, and how many rows they have; the first failure."""
    done = tasks.collect()
    for row in done:
        if row["error"]:
            raise pickle.loads(row["error"])
    return [row["load"] for row in done], sum(row["rows"] for row in done)


def copy_lines(
    connection: SqlConnection, batches: Iterable[pa.RecordBatch], commands: Mapping[int, str]
) -> int:
    """Send each line where it belongs; how many that were."""
    waiting: dict[int, list[memoryview]] = {}
    sizes: dict[int, int] = {}
    rows = 0
    for batch in batches:
        stages, lines = batch.column(0), batch.column(1)
        rows += len(lines)
        for one in pc.unique(stages):
            stage: int = one.as_py()
            text = _bytes(lines.filter(pc.equal(stages, one)))
            waiting.setdefault(stage, []).append(text)
            sizes[stage] = sizes.get(stage, 0) + len(text)
            if sizes[stage] >= FLUSH_BYTES:
                _send(connection, commands[stage], waiting.pop(stage))
                sizes[stage] = 0
    for stage, texts in waiting.items():
        _send(connection, commands[stage], texts)
    return rows


def _bytes(lines: Any) -> memoryview:
    """All lines of an array that ``filter`` has made, one behind the other as they lie there."""
    text = lines.buffers()[2]
    assert text is not None, "a line is not empty"
    return memoryview(text)[: pc.sum(pc.binary_length(lines)).as_py()]


def _send(connection: SqlConnection, command: str, texts: Iterable[memoryview]) -> None:
    with connection.cursor() as cursor, cursor.copy(command.encode()) as copy:
        for text in texts:
            copy.write(text)


@contextmanager
def worker_session(url: str) -> Iterator[SqlConnection]:
    """The worker's connection, opened anew when it has gone bad."""
    known = _connections.get(url)
    if known is None or known.closed or known.broken or not _answers(known):
        known = _connections[url] = connect_target(url, "pgtide stage")
    try:
        yield known
    except BaseException:
        _connections.pop(url).close()
        raise


def _answers(connection: SqlConnection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        connection.close()
        return False
    return True
