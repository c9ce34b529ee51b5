"""How fast a refresh may go: a rate, a time of day, and what somebody says meanwhile."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from pgtide.config.units import parse_window
from pgtide.log.refreshes import RefreshStore

LOOK_INTERVAL_S = 1.0


class Stopped(Exception):
    """The capture ends, or the time of day for reading is over."""


class Paused(Exception):
    """Somebody wants the refresh to pause."""


class Cancelled(Exception):
    """Somebody does not want the refresh any more."""


class Pacing:
    """Implements ``pgtide.capture.refresh_table.Pace``; for several threads."""

    def __init__(
        self,
        store: RefreshStore,
        id: str,
        stop: threading.Event,
        max_rate: int | None,
        window: str | None,
    ) -> None:
        self._store = store
        self._id = id
        self._stop = stop
        self._rate = max_rate
        self._window = window
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the next rows may be read
        self._looked_at = 0.0

    def wait(self, rows: int) -> None:
        """Wait until that many rows may be read; raises when the refresh is not to go on."""
        self.check()
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + rows / self._rate
        while (left := begin - time.monotonic()) > 0:
            self._pause(min(left, LOOK_INTERVAL_S))
            self.check()

    def check(self) -> None:
        """Raise if the refresh is not to go on."""
        if self._stop.is_set():
            raise Stopped
        with self._lock:
            if time.monotonic() - self._looked_at < LOOK_INTERVAL_S:
                return
            self._looked_at = time.monotonic()
        self._look()
        if not is_time(self._window):
            raise Stopped  # the refresh is taken up again when its time has come

    def _look(self) -> None:
        wanted = self._store.control(self._id)
        if wanted == "pause":
            raise Paused
        if wanted == "cancel":
            raise Cancelled

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped


def is_time(window: str | None) -> bool:
    """Whether it is the time of day to read."""
    if window is None:
        return True
    begin, end = parse_window(window)
    now = datetime.now(UTC).time()
    return begin <= now < end if begin <= end else now >= begin or now < end
