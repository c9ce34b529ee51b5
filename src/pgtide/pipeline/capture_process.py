"""Capture as a child process: no Java in it, and started again when it dies.

It tells about itself in lines of JSON on its stdout: ``{"progress": …}``, and ``{"error": …}``
before it ends with one. Its stdin is a pipe on which nothing comes: when that closes its
parent is gone, and it ends as well.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from pgtide import errors
from pgtide.errors import PgtideError, PipelineError, TransientError
from pgtide.pipeline.backoff import Backoff

logger = logging.getLogger(__name__)

UNTIL_CURRENT_PATIENCE_S = 60.0  # without progress, when there is an end to it
STOP_S = 30.0  # time that it has to flush and end


class CaptureProcess:
    """A capture that is kept running; ``run`` is for a thread of its own."""

    def __init__(self, command: Sequence[str], *, until_current: bool) -> None:
        self._command = list(command)
        self._until_current = until_current
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._worked = False  # whether this process has written to the log
        self._ever = False  # or one before it
        self.progress: dict[str, Any] = {}
        self.error: PgtideError | None = None
        self.finished = False  # it is current, and that was all that was asked for

    @property
    def pid(self) -> int | None:
        """The process that captures now."""
        return self._process.pid if self._process is not None else None

    def stop(self) -> None:
        """Let it flush and end."""
        with self._lock:
            self._stop.set()
            if self._process is not None:
                self._process.terminate()

    def kill(self) -> None:
        """End it at once; nothing is lost by that."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def run(self) -> None:
        """Capture until it is current, or stopped, or fails for good."""
        backoff = Backoff()
        while not self._stop.is_set():
            self._worked = False
            try:
                code, error = self._once()
            except (OSError, ValueError, LookupError) as unforeseen:
                # No process could be started, or what it said was cut off.
                code, error = -1, None
                logger.warning("capture cannot be run: %s", type(unforeseen).__name__)
            if code == 0 and self._until_current:
                self.finished = True
                return
            if self._stop.is_set():
                return
            if error is not None and self._is_final(error):
                self.error = error
                return
            if self._worked:
                backoff.progressed()
            if self._until_current and backoff.stuck_s > UNTIL_CURRENT_PATIENCE_S:
                self.error = _does_not_stay(code)
                return
            pause = backoff.next_pause()
            why = error.message if error is not None else f"exit code {code}"
            logger.warning("capture ended (%s); starting it again in %.1f s", why, pause)
            self._stop.wait(pause)

    def _is_final(self, error: PgtideError) -> bool:
        """Whether to give up: it does itself after trying for long, unless all was well once."""
        return self._until_current or not self._ever or not isinstance(error, TransientError)

    def _once(self) -> tuple[int, PgtideError | None]:
        error = None
        with self._lock:
            if self._stop.is_set():
                return 0, None
            # A session of its own: what Ctrl-C sends to all is for the parent to pass on.
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                if "error" in told:
                    error = _error(told["error"])
                else:
                    self.progress = told["progress"]
                    self._worked = self.progress["commits"] > 0
                    self._ever |= self._worked
        with self._lock:
            self._process = None
        return process.returncode, error


def _does_not_stay(code: int) -> PipelineError:
    return PipelineError(
        "capture ends again and again",
        detail=f"The last time with exit code {code}, without saying why.",
        hint="Run it alone: pgtide capture --until-current --log-level debug",
    )


def _error(document: dict[str, Any]) -> PgtideError:
    """The child's error as it was raised there."""
    kind: type[PgtideError] = getattr(errors, document["type"], PipelineError)
    return kind(document["message"], detail=document["detail"], hint=document["hint"])
