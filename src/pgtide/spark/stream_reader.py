"""A user's streaming query as a registered reader of the log: clean-up waits for it.

A query says after each batch which version of the log it has come to. That is written down for
the reader, so that what a query needs which is stopped, or slow, is still there when it goes on.
A query is known by a metric that its frame observes. Several that use one name keep what the
slowest of them needs.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from pgtide.log.readers import list_readers, update_reader
from pgtide.log.schema import CHANGES
from pgtide.log.snapshot import added_file, newest_snapshot
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.position import Lsn, Position
from pgtide.spark.paths import spark_path

LOOK_BACK = 100  # versions

_listening: dict[tuple[str, str, str], StreamReader] = {}
_lock = threading.Lock()


class StreamReader(StreamingQueryListener):
    """Moves one reader of one log as the queries of a session go on."""

    def __init__(self, log: Storage, name: str) -> None:
        self._log = log
        self._name = name
        self._metric = _metric(name)
        self._versions: dict[str, int] = {}  # by query

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        """Spark calls it after each batch, one after the other."""
        if self._metric not in event.progress.observedMetrics:
            return
        place = f"{spark_path(self._log.child(CHANGES).root)}]"
        for source in event.progress.sources:
            # Spark plans its last batch again when a query goes on: it needs where that began.
            if not source.description.rstrip().endswith(place) or not source.startOffset:
                continue
            offset = json.loads(source.startOffset)
            if offset.get("isStartingVersion") or offset.get("isInitialSnapshot"):
                continue  # of that all is needed until it is done
            self._versions[str(event.progress.id)] = int(offset["reservoirVersion"])
            self._move(min(self._versions.values()))

    def _move(self, version: int) -> None:
        """It needs the version before as well: Delta looks at that when a query goes on.

        Its position is that of the last rows it may not have had. The next version need not be
        there yet, and those of maintenance have no new rows.
        """
        for kept in range(version, max(version - LOOK_BACK, -1), -1):
            content = self._log.child(CHANGES).read(commit_path(kept)) or b""
            actions = (json.loads(line).get("add") for line in content.splitlines())
            added = [added_file(action) for action in actions if action and action["dataChange"]]
            if added:
                update_reader(self._log, self._name, version - 1, min(f.low for f in added))
                return


def _metric(name: str) -> str:
    return f"pgtide reader {name}"


def registered(spark: SparkSession, log: Storage, name: str, rows: DataFrame) -> DataFrame:
    """A stream of the log whose queries move a reader; the log keeps what is there for it."""
    if all(reader.name != name for reader in list_readers(log)):
        version = newest_snapshot(log.child(CHANGES)).version
        update_reader(log, name, version, Position(Lsn(0)))
    key = (str(spark.sparkContext.applicationId), log.root, name)
    with _lock:
        if key not in _listening:
            _listening[key] = StreamReader(log, name)
            spark.streams.addListener(_listening[key])
    return rows.observe(_metric(name), F.count(F.lit(1)).alias("rows"))
