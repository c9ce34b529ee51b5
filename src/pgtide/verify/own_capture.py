"""A capture of our own, for as long as something is waited for and nobody else captures."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from pgtide.capture.engine import Capture
from pgtide.config.model import Config
from pgtide.errors import SlotBusy
from pgtide.postgres.connection import connect
from pgtide.postgres.slot import capture_pids
from pgtide.verify.moment import NAME

logger = logging.getLogger(__name__)

STOP_S = 30.0


@dataclass
class OwnCapture:
    """Runs in a thread between ``ensure`` and ``stop``; one start serves every wait in between."""

    config: Config
    _thread: threading.Thread | None = field(default=None, init=False)
    _capture: Capture | None = field(default=None, init=False)
    _error: BaseException | None = field(default=None, init=False)

    def ensure(self) -> None:
        """See to it that somebody captures."""
        if self._thread is None and not self._somebody_captures():
            self._capture = Capture(self.config, hurried=True)
            self._thread = threading.Thread(
                target=self._run, args=(self._capture,), name="capture of verify", daemon=True
            )
            self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread is not None

    def check(self) -> None:
        """Raise what it ended with, unless somebody else has begun to capture meanwhile."""
        if self._error is None:
            return
        error = self._error
        self.stop()
        if not isinstance(error, SlotBusy):
            raise error

    def leave(self) -> None:
        """Let it end by itself, which takes a moment; ``stop`` waits for that."""
        if self._capture is not None:
            self._capture.stop()

    def stop(self) -> None:
        """End it; what is complete is in the log."""
        if self._capture is not None and self._thread is not None:
            self._capture.stop()
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                logger.warning("capture has not ended yet: the source or the log does not answer")
        self._thread = self._capture = self._error = None

    def _run(self, capture: Capture) -> None:
        try:
            capture.run()
        except BaseException as error:
            self._error = error

    def _somebody_captures(self) -> bool:
        with connect(self.config.source.url.reveal(), application_name=NAME) as connection:
            return bool(capture_pids(connection, self.config.source.slot))
