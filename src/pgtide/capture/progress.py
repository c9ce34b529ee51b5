"""What a running capture tells others: ``<log>/capture.json``, and lines on the terminal."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from pgtide.errors import PgtideError
from pgtide.log.storage import Storage
from pgtide.position import Lsn

FILE = "capture.json"
LOCAL_INTERVAL_S = 1.0
OBJECT_STORE_INTERVAL_S = 30.0
ENDED = ("stopped", "failed")  # the gears of a capture that said that it ended


@dataclass(slots=True)
class Progress:
    """The figures of one capture process."""

    gear: str = "starting"  # live, bulk; waiting to try again; stopped, failed
    position: Lsn = Lsn(0)
    server: Lsn = Lsn(0)  # end of the server's durable WAL when last asked
    events: int = 0  # rows made durable since the start
    commits: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    last_error: dict[str, str] | None = None

    @property
    def lag_bytes(self) -> int:
        """WAL that the server has and the log has not."""
        return max(0, self.server - self.position)

    def failed(self, error: PgtideError) -> None:
        """Remember an error for ``pgtide status``."""
        self.last_error = {
            "at": _now(),
            "type": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
        }


class ProgressFile:
    """Writes the figures for other processes, at most every second."""

    def __init__(self, log: Storage, progress: Progress) -> None:
        self._storage = log
        self._progress = progress
        self._interval = LOCAL_INTERVAL_S if log.local is not None else OBJECT_STORE_INTERVAL_S
        self._started_at = _now()
        self._written_at = 0.0
        self._events = 0
        self._rate = 0.0

    def write(self, *, force: bool = False) -> None:
        """Write if it is time."""
        now = time.monotonic()
        elapsed = now - self._written_at
        if elapsed < self._interval and not force:
            return
        progress = self._progress
        if self._written_at and elapsed >= self._interval:
            self._rate = (progress.events - self._events) / elapsed
            self._events = progress.events
        self._written_at = now
        document = {
            "pid": os.getpid(),
            "started_at": self._started_at,
            "updated_at": _now(),
            "events_per_second": round(self._rate, 1),
            "lag_bytes": progress.lag_bytes,
            **asdict(progress),
            "position": str(progress.position),
            "server": str(progress.server),
        }
        self._storage.replace(FILE, json.dumps(document).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
