"""Refreshes from Python: of a pipeline's tables, or by a SELECT.

    Pipeline(config, "lake").refresh("public.orders", where="status = 'open'")
    Syncer(config).refresh("SELECT * FROM public.orders WHERE status = 'open'")

Both ask the capture that runs, be it in another process, and wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from pgtide.config import Config
from pgtide.config.patterns import TablePatterns
from pgtide.errors import ConfigError, TransientError
from pgtide.log.reader import Log
from pgtide.log.refreshes import Refresh, Standing
from pgtide.log.storage import Storage
from pgtide.pipeline.state_file import StateFile
from pgtide.snapshot.asking import ask, of_select, wait_for

POLL_S = 0.2


class Syncer:
    """Has rows read again, for every target of a log."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def refresh(
        self, select_query: str, *, wait: bool = True, timeout_s: float | None = None
    ) -> Standing:
        """Read what a query selects, ``SELECT * FROM schema.table WHERE …``, into the log.

        With ``wait`` it returns when the log has the rows, each in its place among the changes.
        """
        request = ask(self._config, of_select(select_query))
        if not wait:
            return Standing()
        return wait_for(self._config, request.id, timeout_s=timeout_s)


class Pipeline:
    """A pipeline of a configuration, as somebody outside sees it."""

    def __init__(self, config: Config, name: str) -> None:
        if name not in config.pipelines:
            raise ConfigError(f"there is no pipeline {name}")
        self._config = config
        self.name = name

    def refresh(
        self,
        table: str,
        *,
        where: str | None = None,
        keys: Iterable[Sequence[str]] | None = None,
        low: str | None = None,
        high: str | None = None,
        replace: bool = False,
        max_rate: int | None = None,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> Standing:
        """Read rows of a table again; with ``wait`` until the pipeline has applied them.

        ``keys`` are texts of the key's columns, ``low`` and ``high`` of the first one, both
        included. ``replace`` deletes rows that only targets have.
        """
        schema, _, name = table.partition(".")
        if not TablePatterns(self._config.pipelines[self.name].tables).matches(schema, name):
            raise ConfigError(
                f"pipeline {self.name} does not take {table}",
                hint="Write it as schema.table, without quotes.",
            )
        request = Refresh(
            table,
            where=where,
            keys=None if keys is None else tuple(tuple(key) for key in keys),
            low=low,
            high=high,
            replace=replace,
            max_rate=max_rate,
        )
        ask(self._config, request)
        if not wait:
            return Standing()
        began = time.monotonic()
        standing = wait_for(self._config, request.id, timeout_s=timeout_s)
        left = None if timeout_s is None else timeout_s - (time.monotonic() - began)
        self._await_applied(left)
        return standing

    def _await_applied(self, timeout_s: float | None) -> None:
        """Wait until the pipeline has everything that the log has now."""
        log = self._config.log
        file = StateFile(Storage(log.path, log.storage), self.name)
        end = Log(log.path, log.storage).end
        began = time.monotonic()
        while True:
            state = file.load()
            if state is not None and state.position >= end:
                return
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise TransientError(
                    f"pipeline {self.name} has not applied the refresh yet",
                    detail=f"The log ends at {end}.",
                    hint="Start the pipeline if it does not run: pgtide run",
                )
            time.sleep(POLL_S)
