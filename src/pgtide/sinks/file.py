"""The file sink: events as files, a new one for each batch and table, exactly once.

A file's name is the position of its first event, so names sort as events do. How files
appear once, whatever happens, is told in ``ledger.py``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from pyspark.sql import SparkSession

from pgtide.config.sinks import FileSettings
from pgtide.log.files import delete, walk
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure, Writers
from pgtide.pipeline.steps import TableWork
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.sinks import Kept, Scope
from pgtide.sinks.chunks import (
    CHUNK_BYTES,
    HIDDEN_ORDER,
    NO_LAYOUT,
    ArrowMaker,
    Chunk,
    CsvMaker,
    JsonMaker,
    LineMaker,
    ordered_chunks,
)
from pgtide.sinks.csv_rows import csv_header, csv_line
from pgtide.sinks.directories import LOOSE, OWN, QUARANTINE, table_path
from pgtide.sinks.events import (
    Events,
    ddl_events,
    ddl_tables,
    layouts,
    loose_events,
    stepped_tables,
    table_events,
)
from pgtide.sinks.ledger import Ledger, ledgers
from pgtide.sinks.staging import Staging
from pgtide.sinks.target_storage import open_storage, target_answers
from pgtide.sinks.typed_events import Pivoted, typed_rows, untyped_rows
from pgtide.spark.layout import TableName

SWEEP_S = 60.0  # between two looks for files that are too old
_NAME = re.compile(r"[0-9A-F]{16}-\d{10,19}\.(jsonl|csv|parquet)")


@dataclass(frozen=True)
class Content:
    """What goes into the files of one table."""

    chunks: Iterable[Chunk]
    header: Callable[[int], str] = lambda layout: ""
    lost: Iterable[Chunk] = ()  # for the quarantine


class FileSink:
    """Writes the events of batches below one path."""

    whole_transactions = False

    def __init__(self, settings: FileSettings, spark: SparkSession) -> None:
        self._settings = settings
        self._storage = open_storage(settings.path, settings.storage)
        for ledger in ledgers(self._storage):
            ledger.recover()
        self._swept = 0.0
        self._writers = Writers(spark)

    def write(self, batch: Batch) -> list[Failure]:
        def apply(session: SparkSession, work: TableWork) -> None:
            for table in sorted({step.table for step in work.steps}):
                self._table(batch, table)

        failures = self._writers.run(batch.work, apply)
        waiting = {table for work in batch.waiting for table in work.tables}
        for table in sorted(ddl_tables(batch) - stepped_tables(batch) - waiting):
            self._table(batch, table)
        self._loose(batch)
        self._sweep()
        return failures

    def reached(self, scope: Scope, table: TableRules | None = None) -> None:
        """The ledgers tell."""

    def kept(self, pipeline: str) -> None:
        """Nothing else."""

    def keep(self, pipeline: str, kept: Kept) -> None:
        """It is not needed."""

    def leave(self, pipeline: str, table: TableRules, position: Position) -> None:
        """Nor is this."""

    def close(self) -> None:
        self._writers.close()

    def _table(self, batch: Batch, table: TableName) -> None:
        target = table_path(batch.rules(table).target)
        ledger = self._ledger(batch, table_path(table))
        self._publish(batch, ledger, target, self._content(batch, table, ledger.position))

    def _content(self, batch: Batch, table: TableName, behind: Position | None) -> Content:
        if self._settings.envelope == "pivot":
            return self._pivot(batch, table, behind)
        if self._settings.format == "parquet":
            return Content(self._typed(batch, table, behind))
        return self._lines(batch, table_events(batch, {table}).after(behind))

    def _loose(self, batch: Batch) -> None:
        events = loose_events(batch)
        if not events.most or self._settings.envelope == "pivot":
            return
        ledger = self._ledger(batch, LOOSE)
        events = events.after(ledger.position)
        if self._settings.format == "parquet":
            content = Content(self._untyped(batch, events))
        else:
            content = self._lines(batch, events)
        self._publish(batch, ledger, LOOSE, content)

    def _ledger(self, batch: Batch, name: str) -> Ledger:
        ledger = Ledger(self._storage, name)
        ledger.check(batch.source)
        return ledger

    @property
    def _most(self) -> int:
        """Bytes of a chunk: a file cannot be cut finer."""
        return min(CHUNK_BYTES, self._settings.rotate)

    def _lines(self, batch: Batch, events: Events) -> Content:
        form = "csv" if self._settings.format == "csv" else self._settings.envelope
        maker = LineMaker(events.shapes, form, batch.source, datetime.now(UTC), self._most)
        chunks = ordered_chunks(events.frame, maker, events.most, batch.census.rows)
        return Content(chunks, lambda layout: csv_header(events.shapes.get(layout)))

    def _untyped(self, batch: Batch, events: Events) -> Iterator[Chunk]:
        maker = ArrowMaker(NO_LAYOUT, self._most)
        return ordered_chunks(untyped_rows(events), maker, events.most, batch.census.rows)

    def _typed(self, batch: Batch, table: TableName, behind: Position | None) -> Iterator[Chunk]:
        """One layout after the other: each has columns of its own; DDL has none."""
        ddl = ddl_events(batch, {table}).after(behind)
        if ddl.most:
            yield from self._untyped(batch, ddl)
        for rows in layouts(batch, {table}):
            frame = Events(typed_rows(batch, rows), {}, rows.rows).after(behind).frame
            maker = ArrowMaker(rows.layout.shape.id, self._most)
            yield from ordered_chunks(frame, maker, rows.rows, batch.census.rows)

    def _pivot(self, batch: Batch, table: TableName, behind: Position | None) -> Content:
        kind = CsvMaker if self._settings.format == "csv" else ArrowMaker
        headers: dict[int, str] = {}
        parts, lost, total = [], [], batch.census.rows
        for rows in layouts(batch, {table}):
            pivoted = Pivoted(batch, rows, self._settings.pivot, behind)
            frame = pivoted.frame()
            maker = kind(rows.layout.shape.id, self._most, HIDDEN_ORDER)
            headers[maker.layout] = csv_line(frame.columns[: -len(HIDDEN_ORDER)])
            parts.append(ordered_chunks(frame, maker, rows.rows, total, HIDDEN_ORDER))
            if (values := pivoted.lost()) is not None:
                lost.append(
                    ordered_chunks(values, JsonMaker(NO_LAYOUT, self._most), rows.rows, total)
                )
        flat = chain.from_iterable
        return Content(flat(parts), headers.__getitem__, flat(lost))

    def _publish(self, batch: Batch, ledger: Ledger, target: str, content: Content) -> None:
        """Write the files of one table."""
        settings = self._settings
        files, highs = [], []
        for place, format, chunks in (
            (target, settings.format, content.chunks),
            (f"{QUARANTINE}/{target}", "jsonl", content.lost),
        ):
            staging = Staging(ledger, format, settings.rotate, content.header)
            for chunk in chunks:
                staging.add(chunk)
            files += [f"{place}/{name}" for name in staging.close()]
            highs += [staging.high] if staging.high is not None else []
        if files:
            ledger.publish(files, max(highs), batch.source)

    def _sweep(self) -> None:
        """Delete files that are older than ``keep``: those that pgtide has named, no others."""
        keep, now = self._settings.keep, time.time()
        if keep is None or now - self._swept < min(SWEEP_S, keep):
            return
        with target_answers():
            for entry in walk(self._storage, ""):
                ours = _NAME.fullmatch(entry.path.rsplit("/", 1)[-1])
                staged = entry.path.startswith(f"{OWN}/")
                if ours and not staged and entry.modified < now - keep:
                    delete(self._storage, entry.path)
        self._swept = now
