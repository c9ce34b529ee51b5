"""Ending a command by a signal: cleanly at the first, at once at the second."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Have SIGINT and SIGTERM call ``stop``.

    Spark is to be started with ``hears_signals``: else PySpark puts its own handler there.
    """

    def handle(number: int, frame: Any) -> None:
        stop()
        # A second one ends the process as it is; that is safe as well, only less tidy.
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
