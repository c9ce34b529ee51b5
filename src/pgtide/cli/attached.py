"""``python -m pgtide.cli.attached``: the capture of a ``pgtide run``, in a process of its own.

It speaks to the process that started it as ``pgtide.pipeline.capture_process`` says, and ends
with it: nobody holds the slot for a parent that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgtide.cli.invocation import Invocation
from pgtide.cli.rendering import configure_logging, error_document
from pgtide.errors import PgtideError

if TYPE_CHECKING:
    from pgtide.capture.progress import Progress

INTERVAL_S = 0.5


def command_line(invocation: Invocation, *, until_current: bool) -> list[str]:
    """How to start it with the options of another command."""
    config = str(invocation.config_path or "")
    arguments = [config, invocation.log_level, "until-current" if until_current else ""]
    return [sys.executable, "-m", "pgtide.cli.attached", *arguments]


def main(config: str, log_level: str, until_current: str) -> int:
    invocation = Invocation(config_path=Path(config) if config else None, log_level=log_level)
    configure_logging(log_level)
    from pgtide.capture.engine import Capture

    try:
        capture = Capture(invocation.config, on_progress=_Teller())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: capture.stop())
        threading.Thread(target=_until_left_alone, args=(capture.stop,), daemon=True).start()
        capture.run(until_current=bool(until_current))
    except PgtideError as error:
        _tell({"error": error_document(error)})
        return error.exit_code
    return 0


def _until_left_alone(stop: Any) -> None:
    # Not through sys.stdin, whose lock a thread in the middle of reading would keep at exit.
    os.read(0, 1)
    stop()


class _Teller:
    def __init__(self) -> None:
        self._told_at = 0.0
        self._events = 0
        self._rate = 0.0

    def __call__(self, progress: Progress) -> None:
        elapsed = time.monotonic() - self._told_at
        if elapsed < INTERVAL_S and progress.gear not in ("stopped", "failed"):
            return
        if self._told_at:
            self._rate = (progress.events - self._events) / elapsed
        self._told_at += elapsed
        self._events = progress.events
        facts = {
            **asdict(progress),
            "position": str(progress.position),
            "server": str(progress.server),
            "lag_bytes": progress.lag_bytes,
            "events_per_second": round(self._rate, 1),
        }
        _tell({"progress": facts})


def _tell(message: dict[str, Any]) -> None:
    # A parent that is gone hears nothing; its pipe on stdin says so too.
    with suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
