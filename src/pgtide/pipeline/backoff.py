"""Pauses before another attempt: longer each time, a little random, short again after progress."""

from __future__ import annotations

import random
import time

FIRST_S = 0.5
LAST_S = 60.0


class Backoff:
    """The pauses of one thing that is tried again and again."""

    def __init__(self) -> None:
        self._failures = 0
        self._moved_at = time.monotonic()

    def progressed(self) -> None:
        """What comes next is a first failure."""
        self._failures = 0
        self._moved_at = time.monotonic()

    @property
    def stuck_s(self) -> float:
        """Seconds without progress."""
        return time.monotonic() - self._moved_at

    def next_pause(self) -> float:
        """Seconds to wait before the next attempt."""
        pause = min(LAST_S, FIRST_S * 2.0 ** min(self._failures, 12))
        self._failures += 1
        return pause * random.uniform(0.5, 1.0)
