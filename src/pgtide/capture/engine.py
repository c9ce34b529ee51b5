"""The capture: one slot into one log, for ever or until it is current.

    receive ──▶ decode ──▶ buffer ──▶ parts ──▶ commit (rows + V) ──▶ confirm V
     thread      └────────────── this thread ────────────────┘        thread

``Capture.run`` is a loop of sessions. A session opens the log and the source
afresh, checks that they fit, and streams in one of two gears until it is told
to stop, the gear should change, or something fails. A transient failure ends
the session and the next one begins where the log says; that makes recovery and
start-up the same code, and nothing in memory is ever trusted over the log.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

from pgtide.capture.progress import Progress, ProgressFile
from pgtide.capture.session import CaptureSession
from pgtide.config import Config
from pgtide.errors import (
    LogDenied,
    LogMissing,
    LogUnavailable,
    PgtideError,
    SlotBusy,
    TransientError,
)
from pgtide.log.storage import Storage

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 30.0
IN_HASTE_PATIENCE_S = 60.0  # how long one that somebody waits for tries without any progress
# A server needs a moment to notice that our own last session is gone; another capture stays.
SLOT_BUSY_PATIENCE_S = 5.0


class Capture:
    """Captures until stopped."""

    def __init__(
        self,
        config: Config,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        hurried: bool = False,
    ):
        """``hurried``: somebody waits for it, and it does not try for ever."""
        self._config = config
        self._hurried = hurried
        self._stop = threading.Event()
        self.progress = Progress()
        self._file = ProgressFile(Storage(config.log.path, config.log.storage), self.progress)
        self._on_progress = on_progress
        self._opened = False  # whether the log was there once

    def stop(self) -> None:
        """Flush what is complete and end ``run``; safe to call from a signal handler."""
        self._stop.set()

    def run(self, *, until_current: bool = False, gear: str | None = None) -> None:
        """Capture for ever, or everything that was committed before this call."""
        in_haste = until_current or self._hurried
        failures = 0
        moved_at = time.monotonic()
        while not self._stop.is_set():
            before = self.progress.position
            try:
                with self._session(gear) as session:
                    self._opened = True
                    session.run(until_current=until_current, tick=self._tick)
                break
            except PgtideError as exc:
                error = self._judge(exc)
                if self.progress.position > before:
                    failures, moved_at = 0, time.monotonic()
                failures += 1
                final = time.monotonic() - moved_at > self._patience(error, in_haste)
                self._failed(error, final=final)
                if not final:
                    self._back_off(error, failures)
                elif error is exc:
                    raise
                else:
                    raise error from exc
        self.progress.gear = "stopped"
        self._tick(force=True)

    def _session(self, gear: str | None) -> CaptureSession:
        return CaptureSession(self._config, self.progress, self._stop, gear, hurried=self._hurried)

    def _judge(self, error: PgtideError) -> PgtideError:
        """The error itself; only a log that was there once may come back."""
        if isinstance(error, LogMissing) and self._opened:
            hint = "Put it back; capture goes on by itself."
            return LogUnavailable("the log is gone", detail=error.detail, hint=hint)
        if isinstance(error, LogDenied) and self._opened:
            hint = "Give the keys their rights back; capture goes on by itself."
            return LogUnavailable(error.message, detail=error.detail, hint=hint)
        return error

    def _patience(self, error: PgtideError, in_haste: bool) -> float:
        """How long to keep trying without progress."""
        if not isinstance(error, TransientError):
            return -math.inf
        if isinstance(error, SlotBusy) and not self.progress.commits:
            return SLOT_BUSY_PATIENCE_S
        return IN_HASTE_PATIENCE_S if in_haste else math.inf

    def _failed(self, error: PgtideError, *, final: bool) -> None:
        self.progress.gear = "failed" if final else "waiting"
        self.progress.failed(error)
        self._tick(force=True)

    def _back_off(self, error: PgtideError, failures: int) -> None:
        delay = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2 ** min(failures, 12))
        delay *= random.uniform(0.5, 1.0)
        said = f"{error.message}: {error.detail}" if error.detail else error.message
        logger.warning("%s; trying again in %.1f s", said.rstrip("."), delay)
        self._stop.wait(delay)

    def _tick(self, *, force: bool = False) -> None:
        try:
            self._file.write(force=force)
        except (LogUnavailable, LogDenied):
            # The log itself is unavailable: its own error says so, this file is a by-product.
            if not force:
                raise
        if self._on_progress is not None:
            self._on_progress(self.progress)
