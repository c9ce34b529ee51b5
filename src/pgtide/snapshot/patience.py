"""Trying again: a snapshot that failed for a passing reason begins anew, from the start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pgtide.errors import SlotBusy, TransientError
from pgtide.pipeline.backoff import Backoff
from pgtide.snapshot.initial import InitialSnapshot

logger = logging.getLogger(__name__)

TRIES = 5


def take_patiently(make: Callable[[], InitialSnapshot], stop: threading.Event) -> InitialSnapshot:
    """Take a snapshot, in a few attempts if need be; the one that ended, by itself or stopped."""
    backoff = Backoff()
    for left in reversed(range(TRIES)):
        snapshot = make()
        try:
            snapshot.take()
            return snapshot
        except SlotBusy:
            raise
        except TransientError as error:
            if not left or stop.is_set():
                raise
            pause = backoff.next_pause()
            logger.warning("snapshot: %s; beginning anew in %.1f s", error.message, pause)
            stop.wait(pause)
    raise AssertionError("the last attempt raises or returns")
