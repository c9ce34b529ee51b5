"""The stdout sink: events on standard output, one per line, in order across all tables.

At least once: a batch that was interrupted is printed again from its beginning. A reader
that leaves, as ``| head`` does, ends the pipeline without an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from pgtide.config.sinks import StdoutSettings
from pgtide.errors import TargetClosed
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure
from pgtide.sinks.chunks import Chunk, LineMaker, ordered_chunks
from pgtide.sinks.events import all_events
from pgtide.standard_output import stdout_may_close


class StdoutSink:
    """Prints the events of batches."""

    def __init__(self, settings: StdoutSettings) -> None:
        self._settings = settings

    def write(self, batch: Batch) -> list[Failure]:
        chunks = self._chunks(batch)
        printed = False
        with stdout_may_close():
            for chunk in chunks:
                sys.stdout.buffer.write(chunk.data)
            sys.stdout.flush()
            printed = True
        if not printed:
            raise TargetClosed("nobody reads standard output any more")
        return []

    def close(self) -> None:
        """There is nothing to let go of."""

    def _chunks(self, batch: Batch) -> Iterator[Chunk]:
        events = all_events(batch)
        now = datetime.now(UTC)
        maker = LineMaker(events.shapes, self._settings.envelope, batch.source, now)
        return ordered_chunks(events.frame, maker, events.most, batch.census.rows)
