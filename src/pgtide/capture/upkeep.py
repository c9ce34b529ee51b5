"""The log's maintenance, in a thread beside the appends.

It works on a handle of its own and its commits never conflict with appends.
"""

from __future__ import annotations

import threading

from pgtide.config import Config
from pgtide.log.maintenance import Maintenance
from pgtide.log.writer import LogWriter


class Upkeep:
    """Runs ``Maintenance`` when it is due; errors surface at the next commit."""

    def __init__(self, config: Config, writer: LogWriter) -> None:
        self._writer = writer
        self._maintenance = Maintenance(
            config.log.path,
            config.log.storage,
            config.log.retention,
            in_use=lambda: list(writer.uncommitted),
        )
        self._wanted = threading.Event()
        self._busy = False
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgtide-upkeep", daemon=True)
        self._thread.start()

    def committed(self, *, busy: bool) -> None:
        """To be called after each commit; while ``busy`` only what keeps commits cheap is done."""
        if self._error is not None:
            raise self._error
        if not self._wanted.is_set() and self._maintenance.due(self._writer.version, busy=busy):
            self._busy = busy
            self._wanted.set()

    def close(self) -> None:
        """Finish the round that is running."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wanted.wait()
                if self._closing:
                    return
                if self._maintenance.run_once(busy=self._busy).checkpoint is not None:
                    self._writer.renew()
                # After the round: what it does anyway is not asked for meanwhile.
                self._wanted.clear()
        except BaseException as exc:  # handed to the committing side
            self._error = exc
