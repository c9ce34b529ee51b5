"""A user's streaming query as a registered reader of the log: clean-up waits for it.

A query says after each batch which version of the log it has come to. That is written down for
the reader, so that what a query needs which is stopped, or slow, is still there when it goes on.
A query is known by a metric that its frame observes. A name is for one query: while two use it,
it stands still, and the log keeps everything from there on.
"""

from __future__ import annotations

import json
import logging
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

logger = logging.getLogger(__name__)

LOOK_BACK = 100  # versions

_listening: dict[tuple[str, int, str, str], StreamReader] = {}
_lock = threading.Lock()


class StreamReader(StreamingQueryListener):
    """Moves one reader of one log as its query in a session goes on."""

    def __init__(self, log: Storage, name: str) -> None:
        self._log = log
        self._name = name
        self._metric = _metric(name)
        self._place = f"{spark_path(log.child(CHANGES).root)}]"
        self._query = ""  # the one that moves it
        self._told = False

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        if str(event.id) == self._query:
            self._query = ""

    def onQueryProgress(self, event: Any) -> None:
        """Spark calls it after each batch, one after the other."""
        if self._metric not in event.progress.observedMetrics:
            return
        # Spark plans its last batch again when a query goes on: it needs where that began.
        mine = [s for s in event.progress.sources if s.description.rstrip().endswith(self._place)]
        offsets = [_offset(source.startOffset) for source in mine]
        if not offsets:
            self._tell("a query of reader %s reads no log that is known here; it does not move")
        elif not self._is_its(str(event.progress.id)):
            self._tell("two queries use reader %s: it stands still until each has its own name")
        elif all("reservoirVersion" in offset and not _is_begun(offset) for offset in offsets):
            self._move(min(int(offset["reservoirVersion"]) for offset in offsets))

    def _is_its(self, query: str) -> bool:
        self._query = self._query or query
        return self._query == query

    def _tell(self, message: str) -> None:
        if not self._told:
            logger.error(message, self._name)
        self._told = True

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


def _offset(text: str | None) -> dict[str, Any]:
    """An offset of Delta's; empty in a query's first batch, for which PySpark has the text None."""
    fields: dict[str, Any] = json.loads(text) if text and text.startswith("{") else {}
    return fields


def _is_begun(offset: dict[str, Any]) -> bool:
    """Whether it is inside of the first snapshot: of that all is needed until it is done."""
    return bool(offset.get("isStartingVersion") or offset.get("isInitialSnapshot"))


def _metric(name: str) -> str:
    return f"pgtide reader {name}"


def registered(spark: SparkSession, log: Storage, name: str, rows: DataFrame) -> DataFrame:
    """A stream of the log whose queries move a reader; the log keeps what is there for it."""
    if all(reader.name != name for reader in list_readers(log)):
        version = newest_snapshot(log.child(CHANGES)).version
        update_reader(log, name, version, Position(Lsn(0)))
    jvm: Any = spark.sparkContext._jvm
    session = int(jvm.System.identityHashCode(spark._jsparkSession))  # listeners are a session's
    key = (str(spark.sparkContext.applicationId), session, log.root, name)
    with _lock:
        if key not in _listening:
            _listening[key] = StreamReader(log, name)
            spark.streams.addListener(_listening[key])
    return rows.observe(_metric(name), F.count(F.lit(1)).alias("rows"))
