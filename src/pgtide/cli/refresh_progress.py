"""Progress of a refresh: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pgtide.log.refreshes import Standing

LINE_INTERVAL_S = 10.0


class RefreshReporter:
    """Told how a refresh stands, a few times a second."""

    def __init__(self, table: str, *, quiet: bool) -> None:
        self._table = table
        self._quiet = quiet
        self._progress: Any = None
        self._task: Any = None
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f} rows"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
            self._task = self._progress.add_task(self._table, total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, standing: Standing) -> None:
        if self._progress is not None:
            told = {"completed": standing.rows, "total": standing.total or None}
            self._progress.update(self._task, description=self._said(standing), **told)
        elif not self._quiet and time.monotonic() - self._said_at > LINE_INTERVAL_S:
            self._said_at = time.monotonic()
            print(f"{self._said(standing)}: {standing.rows} rows", file=sys.stderr)

    def _said(self, standing: Standing) -> str:
        return f"{self._table} {standing.state} {standing.message}".strip()
