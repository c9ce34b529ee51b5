"""The file sink: events as files, a new one for each batch and table, exactly once.

A file's name is the position of its first event, so names sort as events do. How files
appear once, whatever happens, is told in ``ledger.py``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from pgtide.config.sinks import FileSettings
from pgtide.log.files import delete, walk
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure, Writers
from pgtide.pipeline.steps import TableWork
from pgtide.sinks.chunks import CHUNK_BYTES, NO_LAYOUT, ArrowMaker, Chunk, LineMaker, ordered_chunks
from pgtide.sinks.delta.target import directory
from pgtide.sinks.events import (
    Events,
    ddl_events,
    ddl_tables,
    layouts,
    left_out,
    loose_events,
    stepped_tables,
    table_events,
)
from pgtide.sinks.ledger import OWN, Ledger, ledgers, open_storage, target_answers
from pgtide.sinks.staging import Staging
from pgtide.sinks.typed_events import typed_rows, untyped_rows
from pgtide.spark.layout import TableName

logger = logging.getLogger(__name__)

LOOSE = "_messages"  # the directory of what belongs to no table
SWEEP_S = 60.0  # between two looks for files that are too old
_NAME = re.compile(r"[0-9A-F]{16}-\d{10}\.(jsonl|csv|parquet)")


class FileSink:
    """Writes the events of batches below one path."""

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

    def close(self) -> None:
        self._writers.close()

    def _table(self, batch: Batch, table: TableName) -> None:
        schema, name = (directory(part) for part in table)
        target = "/".join(directory(part) for part in batch.rules(table).target)
        ledger = self._ledger(batch, f"{schema}/{name}")
        events = table_events(batch, {table})
        if self._settings.format == "parquet":
            chunks = self._typed(batch, table, ledger)
        else:
            chunks = self._lines(batch, events, ledger)
        behind = ledger.position
        written = self._publish(batch, ledger, target, events, chunks)
        withheld = left_out(batch, table, behind, written)
        if withheld:
            logger.info("rules left out %d events of %s", withheld, ".".join(table))

    def _loose(self, batch: Batch) -> None:
        events = loose_events(batch)
        if not events.most:
            return
        ledger = self._ledger(batch, LOOSE)
        if self._settings.format == "parquet":
            frame = untyped_rows(events.after(ledger.position))
            maker = ArrowMaker(NO_LAYOUT, self._most)
            chunks = ordered_chunks(frame, maker, events.most, batch.census.rows)
        else:
            chunks = self._lines(batch, events, ledger)
        self._publish(batch, ledger, LOOSE, events, chunks)

    def _ledger(self, batch: Batch, name: str) -> Ledger:
        ledger = Ledger(self._storage, name)
        ledger.check(batch.source)
        return ledger

    @property
    def _most(self) -> int:
        """Bytes of a chunk: a file cannot be cut finer."""
        return min(CHUNK_BYTES, self._settings.rotate)

    def _lines(self, batch: Batch, events: Events, ledger: Ledger) -> Iterator[Chunk]:
        form = "csv" if self._settings.format == "csv" else self._settings.envelope
        maker = LineMaker(events.shapes, form, batch.source, datetime.now(UTC), self._most)
        frame = events.after(ledger.position).frame
        return ordered_chunks(frame, maker, events.most, batch.census.rows)

    def _typed(self, batch: Batch, table: TableName, ledger: Ledger) -> Iterator[Chunk]:
        """One layout after the other: each has columns of its own; DDL has none."""
        scanned = batch.census.rows
        ddl = ddl_events(batch, {table}).after(ledger.position)
        if ddl.most:
            yield from ordered_chunks(
                untyped_rows(ddl), ArrowMaker(NO_LAYOUT, self._most), ddl.most, scanned
            )
        for rows in layouts(batch, {table}):
            frame = Events(typed_rows(batch, rows), {}, rows.rows).after(ledger.position).frame
            maker = ArrowMaker(rows.layout.shape.id, self._most)
            yield from ordered_chunks(frame, maker, rows.rows, scanned)

    def _publish(
        self, batch: Batch, ledger: Ledger, target: str, events: Events, chunks: Iterator[Chunk]
    ) -> int:
        """Write the files of one table; how many changes they hold."""
        staging = Staging(ledger, self._settings.format, self._settings.rotate, events.shapes)
        for chunk in chunks:
            staging.add(chunk)
        names = staging.close()
        if staging.high is not None:
            ledger.publish([f"{target}/{name}" for name in names], staging.high, batch.source)
        return staging.changes

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
