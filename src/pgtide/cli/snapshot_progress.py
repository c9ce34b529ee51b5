"""What a snapshot shows: a bar for each table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from pgtide.cli.quantities import duration, size

if TYPE_CHECKING:
    from pgtide.snapshot.progress import SnapshotProgress, TableProgress

logger = logging.getLogger("pgtide.snapshot")

LINE_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.25
BARS = 12  # tables that have one at a time


class SnapshotReporter:
    """Called often while a snapshot is taken; says something now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._first: dict[str, tuple[float, int]] = {}  # when a table had rows, and how many
        self._said_at = 0.0
        self._stage = ""

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bars = _bars()
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, progress: SnapshotProgress) -> None:
        if self._quiet:
            return
        moved = progress.stage != self._stage
        interval = BAR_INTERVAL_S if self._bars is not None else LINE_INTERVAL_S
        if not moved and time.monotonic() - self._said_at < interval:
            return
        self._said_at, self._stage = time.monotonic(), progress.stage
        if self._bars is not None:
            self._draw(progress)
        else:
            logger.info(line(progress))

    def _draw(self, progress: SnapshotProgress) -> None:
        self._bar("", line(progress), progress.bytes, progress.bytes_done, "")
        open_tables = [(n, t) for n, t in progress.tables.items() if t.bytes_done < t.bytes]
        begun = sorted(open_tables, key=lambda item: (not item[1].bytes_done, -item[1].bytes))
        shown: dict[str, TableProgress] = dict(begun[:BARS])
        for name in [name for name in self._tasks if name and name not in shown]:
            self._bars.remove_task(self._tasks.pop(name))
        for name, table in shown.items():
            rows = f"{table.rows} rows {self._rate(name, table.rows)}"
            self._bar(name, name, table.bytes, table.bytes_done, rows)

    def _rate(self, name: str, rows: int) -> str:
        """Rows a second since the first ones of a table: nobody knows when those began to come."""
        now = time.monotonic()
        if not rows:
            return ""
        began, had = self._first.setdefault(name, (now, rows))
        return f"{(rows - had) / (now - began):.0f}/s" if rows > had else ""

    def _bar(self, key: str, text: str, total: int, done: int, rows: str) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(text, total=None, rows="")
        self._bars.update(
            self._tasks[key], description=text, total=total or None, completed=done, rows=rows
        )


def line(progress: SnapshotProgress) -> str:
    """One line: how far, how fast, how long to go."""
    if progress.stage != "copying":
        point = f" at {progress.point}" if progress.point else ""
        return f"snapshot{point}: {progress.stage}"
    rate = progress.rows / progress.seconds if progress.seconds > 0 else 0.0
    left = progress.seconds_left
    said = [
        f"{progress.rows} rows",
        f"{rate:.0f}/s",
        f"{size(progress.bytes_done)} of {size(progress.bytes)}",
    ]
    if left is not None:
        said.append(f"{duration(left)} left")
    return f"snapshot at {progress.point}: {', '.join(said)}"


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
