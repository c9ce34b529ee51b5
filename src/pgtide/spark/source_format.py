"""The format ``pgtide``: a table's changes for those who name a format instead of a function.

    pgtide.register(spark)   # pgtide.session() did it already
    spark.readStream.format("pgtide").option("log", "tide/log").option("table", "orders").load()

Schema and values are those of ``changes()``. The log is read by Python: values are converted in
Arrow, a query reads every column, and on Spark 4.1 nothing bounds a stream's batch.

An offset is the position after the last row. Whatever lies between two of them can be read again
for as long as retention keeps it, so a batch that is repeated has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from pgtide.config.unbounded_numeric import STRING
from pgtide.errors import ConfigError, LogError, LogGap, PgtideError
from pgtide.log.follow import Cleaned, CommitTail
from pgtide.log.snapshot import Snapshot
from pgtide.position import Lsn, Position
from pgtide.spark.layout import check_policy
from pgtide.spark.log_slices import LoggedChanges, Slice

FORMAT = "pgtide"
STORAGE = "storage."
OPTIONS = ("log", "table", "on_unrepresentable", "unbounded_numeric")
REUSE = "spark.python.worker.reuse"  # a setting of Spark's


def register(spark: SparkSession) -> None:
    """Make the format ``pgtide`` known to a session."""
    with _workers_for_once(spark):
        spark.dataSource.register(ChangeSource)


@contextmanager
def _workers_for_once(spark: SparkSession) -> Iterator[None]:
    """Let Spark end the Python worker that it plans with, which here looks for formats of others.

    Spark would keep it, and leave it alone after a minute; then it prints that it has nobody to
    talk to. It is run by a daemon that no setting names, unlike those of tasks, and the settings
    that a session shows are copies.
    """
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.org.apache.spark.SparkEnv.get().conf()
    before = settings.get(REUSE, "true")
    settings.set(REUSE, "false")
    try:
        yield
    finally:
        settings.set(REUSE, before)


@contextmanager
def explained() -> Iterator[None]:
    """All of an error: Spark shows the traceback, which has an error's notes but no fields."""
    try:
        yield
    except PgtideError as error:
        for line in (error.detail, error.hint and f"Hint: {error.hint}"):
            if line:
                error.add_note(line)
        raise


class ChangeSource(DataSource):
    """One table of one log; what it looks like is looked up once, when the frame is made."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with explained():
            given = _checked(options)
            storage = {
                name.removeprefix(STORAGE): value
                for name, value in given.items()
                if name.startswith(STORAGE)
            }
            policy: Any = given.get("on_unrepresentable", "fail")
            unbounded = given.get("unbounded_numeric", STRING)
            self.changes = LoggedChanges.open(
                given["log"], storage, given["table"], policy, unbounded
            )

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return self.changes.rows.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return ChangeReader(self.changes)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        return ChangeStreamReader(self.changes)

    def _check(self, schema: StructType) -> None:
        with explained():
            if schema != self.schema():
                raise ConfigError(
                    "the format pgtide has a schema of its own",
                    detail="Its columns are those of the table in the log.",
                    hint="Leave out .schema(…), and select from the frame.",
                )


class ChangeReader(DataSourceReader):
    """What the log held when the frame was made."""

    def __init__(self, changes: LoggedChanges) -> None:
        self._changes = changes

    def partitions(self) -> Sequence[InputPartition]:
        with explained():
            snapshot = self._changes.snapshot()
            return self._changes.slices(snapshot, Position(Lsn(0)), self._changes.end)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self._changes, partition)


class ChangeStreamReader(DataSourceStreamReader):
    """Everything the log holds, and what comes; it lives as long as its query."""

    def __init__(self, changes: LoggedChanges) -> None:
        self._changes = changes
        self._tail: CommitTail | None = None
        self._end = Position(Lsn(0))

    def initialOffset(self) -> dict[str, str]:
        with explained():
            return _offset(Position(self._changes.snapshot().complete_from))

    def latestOffset(self) -> dict[str, str]:
        """Asked a hundred times a second when idle: one look for one file, most of the time."""
        with explained():
            files = self._tail.next_files() if self._tail is not None else Cleaned()
            while files is not None:
                if isinstance(files, Cleaned):
                    snapshot = self._changes.snapshot()
                    self._end = snapshot.end
                    self._tail = CommitTail(self._changes.storage, snapshot.version)
                for file in () if isinstance(files, Cleaned) else files:
                    self._end = max(self._end, Position(file.high.lsn, file.high.seq + 1))
                assert self._tail is not None
                files = self._tail.next_files()
            return _offset(self._end)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        with explained():
            first, after = Position.parse(start["position"]), Position.parse(end["position"])
            snapshot = self._changes.snapshot()
            _check_range(snapshot, first, after)
            # Shapes are durable before their rows, so those of this range are known by now.
            self._changes.refuse_new_shapes()
            return self._changes.slices(snapshot, first, after)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _read(self._changes, partition)


def _read(changes: LoggedChanges, partition: InputPartition | None) -> Iterator[Any]:
    with explained():
        if isinstance(partition, Slice):  # Spark asks for None when there are no partitions
            yield from changes.read(partition)


def _offset(position: Position) -> dict[str, str]:
    return {"position": str(position)}


def _check_range(snapshot: Snapshot, start: Position, end: Position) -> None:
    if start < Position(snapshot.complete_from):
        raise LogGap(
            "the log no longer holds what the query has not read",
            detail=f"It goes on at {start}, retention has kept "
            f"{Position(snapshot.complete_from)} and later.",
            hint="Start it with a new checkpoint, and set log.retention higher.",
        )
    if start > end or end > snapshot.end:
        raise LogError(
            "the log ends before what the query has read",
            detail=f"The query is at {max(start, end)}, the log ends at {snapshot.end}: "
            "this is not the log that the checkpoint is about.",
            hint="Correct the option log, or start the query with a new checkpoint.",
        )


def _checked(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options by lower-case name, as Spark has them."""
    given = {name.lower(): value for name, value in options.items()}
    example = f'spark.read.format("{FORMAT}").option("log", …).option("table", …).load()'
    for name in given:
        if name not in OPTIONS and not name.startswith(STORAGE):
            raise ConfigError(
                f"the format pgtide has no option {name}",
                detail=f"It has {', '.join(OPTIONS)} and {STORAGE}*.",
                hint=example,
            )
    for name in ("log", "table"):
        if not given.get(name):
            raise ConfigError(f"the format pgtide needs the option {name}", hint=example)
    check_policy(given.get("on_unrepresentable", "fail"))
    return given
