"""The path of a chunk through a session: decode, buffer, parts, commit.

A flow begins where the log ends and knows the tables as they were there. When
the gear changes a new one is made: a transaction that was cut off by the switch
comes again from its beginning, and must find everything as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from pgtide.capture.buffer import RowBuffer, Stretch
from pgtide.capture.ddl import DdlCommand
from pgtide.capture.faults import fault
from pgtide.capture.progress import Progress
from pgtide.capture.receive import Received
from pgtide.capture.rewrites import Rewrite, rewrites_of
from pgtide.capture.startup import Start, check_publications
from pgtide.capture.tables import TableCatalog
from pgtide.capture.upkeep import Upkeep
from pgtide.capture.windows import Windows
from pgtide.config import Config, TablePatterns
from pgtide.errors import PublicationChanged
from pgtide.log.shapes import ShapeStore
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.publication import insert_name
from pgtide.postgres.published import read_published
from pgtide.wal.decoder import Chunk, Decoder

IDLE_COMMIT_INTERVAL_S = 10.0  # commits that carry only a position, at most this often
HURRIED_COMMIT_INTERVAL_S = 0.1  # or this often, while somebody waits for positions
BUSY_FLUSH_SHARE = 0.5  # flushes come less often when they would take more of the time
FLUSH_EARLY = 0.8  # share of the interval after which a flush begins
SHORTEST_INTERVAL_S = 0.005
LONGEST_WAIT_S = 0.25
LOOK_INTERVAL_S = 1.0  # between looks at the publications


class Flow:
    """Takes chunks and commits them, with the position up to which everything was seen."""

    def __init__(
        self,
        config: Config,
        start: Start,
        writer: LogWriter,
        upkeep: Upkeep,
        progress: Progress,
        side: SqlConnection,
        encoder: Executor,
        windows: Windows,
        on_rewrite: Callable[[Rewrite], None],
    ) -> None:
        self._config = config
        self._timeline = start.timeline
        slot = config.source.slot
        self._publications = {*start.stream.publications, slot, insert_name(slot)}
        self._told_of_ddl = start.key is not None
        self._writer = writer
        self._upkeep = upkeep
        self._progress = progress
        self._side = side
        self._encoder = encoder
        self._windows = windows
        self._on_rewrite = on_rewrite
        log = Storage(config.log.path, config.log.storage)
        self._shapes = ShapeStore(log, writer.position)
        self._catalog = TableCatalog(
            self._shapes,
            TablePatterns(config.source.tables),
            key=start.key,
            live_layout=lambda oid: read_layouts(side, oid=oid).get(oid),
            on_ddl=self._on_ddl,
            published=read_published(side, start.stream.publications),
        )
        self._decoder = Decoder(self._catalog, resume=writer.position)
        self._buffer = RowBuffer(writer, config.log.buffer, encoder)
        self._counted: dict[str, int] = {}
        self._flush_seconds = 0.0
        self._awaited_since: float | None = None
        self._publication_touched = False
        self._publications_seen_at = 0.0
        self.committed_at = time.monotonic()  # of the last commit, or of the start

    @property
    def end(self) -> Lsn:
        """Up to here every transaction and message was seen."""
        return self._buffer.end

    @property
    def in_transaction(self) -> bool:
        """Whether the last chunk ended inside a transaction."""
        return self._decoder.in_transaction

    def take(self, received: Received) -> None:
        """Decode one chunk and keep its rows."""
        if received.chunk.count:
            fault("after_receive")
            self._decode(received.chunk)
        if self._publication_touched:
            self._publication_touched = False
            # Before anything is vouched for: rows after the change may be missing.
            check_publications(self._side, self._config.source.slot)
            # It is as init made it, so init changed it, or someone changed it and back. Either
            # way tables may have been left out for a while, and that is not passed over.
            self.flush(self.end)
            raise PublicationChanged(
                "the publication was changed while capture ran",
                detail="The log goes on behind the change; rows of tables that the publication "
                "left out meanwhile are not in it.",
                hint="If that was meant, start the capture again: pgtide capture",
            )

    def _decode(self, chunk: Chunk) -> None:
        """Decode a chunk; rows of a refresh get their place at its watermarks."""
        done = 0
        while done < chunk.count:
            decoded = self._decoder.decode(chunk, done)
            done = decoded.messages
            self._buffer.add(decoded, self._decoder.slots)
            self._windows.observe(decoded, self._decoder.slots, self._shapes.by_id)
            if decoded.watermark is None or not self._windows.is_expected(decoded.watermark.token):
                continue
            self._awaited_since = self._awaited_since or time.monotonic()
            rows = self._windows.pass_watermark(
                decoded.watermark, self._decoder, self._shapes, told_of_ddl=self._told_of_ddl
            )
            if rows is not None:
                self._buffer.add(rows, self._decoder.slots)

    def due(self, vouched: Lsn, *, until: Lsn | None, hurried: bool) -> bool:
        """Whether it is time for ``flush``; ``until`` is a position that someone waits for,
        ``hurried``: for any position."""
        now = time.monotonic()
        if until is not None and vouched >= until:
            return vouched > self._writer.position
        since = self._waiting_since()
        if since is not None:
            return now - since >= self._interval()
        if vouched <= self._writer.position:
            return False
        # Nothing to log, only a position to vouch for: rarely, or when someone waits for it.
        interval_s = HURRIED_COMMIT_INTERVAL_S if hurried else IDLE_COMMIT_INTERVAL_S
        return until is not None or now - self.committed_at >= interval_s

    def patience(self) -> float:
        """How long to wait for the next chunk before asking ``due`` again."""
        since = self._waiting_since()
        if since is None:
            return LONGEST_WAIT_S
        left = since + self._interval() - time.monotonic()
        return min(max(left, 0.0), LONGEST_WAIT_S)

    def _waiting_since(self) -> float | None:
        """Since when rows wait for the flush, or somebody for a watermark's place in the log."""
        times = [at for at in (self._buffer.since, self._awaited_since) if at is not None]
        return min(times, default=None)

    def _interval(self) -> float:
        """As configured; wider when flushing would otherwise eat the time to decode."""
        # Receiving, the flush itself and whoever reads take time too: be visible in time.
        interval = FLUSH_EARLY * self._config.log.flush_interval - self._flush_seconds
        return max(interval, self._flush_seconds / BUSY_FLUSH_SHARE, SHORTEST_INTERVAL_S)

    def pour(self) -> bool:
        """When the buffer is full begin to write it, and commit what is on disk by now.

        True if there was a commit.
        """
        if not self._buffer.full:
            return False
        self._buffer.write_behind(self._decoder.slots)
        written = self._buffer.take_written()
        if written:
            self._commit(written, written[-1].end, busy=True)
        return bool(written)

    def flush(self, position: Lsn) -> None:
        """Make everything complete durable, with its position."""
        self._awaited_since = None
        if not self._buffer.waiting and position <= self._writer.position:
            return
        began = time.monotonic()
        stretches = self._buffer.take_all(self._decoder.slots)
        self._commit(stretches, position, busy=False)
        if stretches:
            self._flush_seconds += 0.3 * (self.committed_at - began - self._flush_seconds)

    def _commit(self, stretches: Sequence[Stretch], position: Lsn, *, busy: bool) -> None:
        now = time.monotonic()
        if not self._told_of_ddl or now - self._publications_seen_at > LOOK_INTERVAL_S:
            # Nobody tells us of a change while event triggers are off: look, before vouching.
            check_publications(self._side, self._config.source.slot)
            self._publications_seen_at = now
        self._shapes.persist()
        parts = [action for stretch in stretches for action in stretch.actions()]
        if parts:
            fault("after_data_file")
        self._writer.commit(parts, max(position, self._writer.position), self._timeline)
        fault("after_commit")
        self.committed_at = time.monotonic()
        self._upkeep.committed(busy=busy)
        self._windows.committed(self._writer.position)
        self._progress.position = self._writer.position
        self._progress.commits += 1
        self._progress.events += sum(stretch.rows for stretch in stretches)
        self._count()

    def _count(self) -> None:
        """Add what was left out since the last commit; figures are the whole process's."""
        now = {"filtered_rows": self._decoder.filtered, **self._catalog.counters.as_dict()}
        for name, value in now.items():
            total = self._progress.counters.get(name, 0)
            self._progress.counters[name] = total + value - self._counted.get(name, 0)
        self._counted = now

    def _on_ddl(self, command: DdlCommand, lsn: Lsn, xid: int) -> None:
        """Nor must a change of our own publication go unnoticed, nor one of rows by no event."""
        self._windows.altered(command, xid)
        for rewrite in rewrites_of(command, lsn, self._shapes.current.values()):
            self._on_rewrite(rewrite)
        if "PUBLICATION" in command.tag and command.names("publication") & self._publications:
            self._publication_touched = True
