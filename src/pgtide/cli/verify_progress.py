"""What ``pgtide verify`` shows: bars on a terminal, plain lines elsewhere, and the outcome."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from pgtide.cli.marks import print_line

if TYPE_CHECKING:
    from pgtide.verify.report import PipelineReport, TableReport
    from pgtide.verify.verifying import OnProgress

logger = logging.getLogger("pgtide.verify")

SHOWN = 20  # keys of a table that are printed; --json has more
STEPS = 4  # lines that a table gets at most, where there is no terminal


class VerifyReporter:
    """Told how far each table is, from several threads."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._said: dict[str, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def telling_of(self, pipeline: str) -> OnProgress:
        """What to call about the tables of a pipeline."""
        return lambda table, done, of: self._tell(f"{pipeline}: {table}", done, of)

    def _tell(self, name: str, done: int, of: int) -> None:
        if self._quiet:
            return
        with self._lock:
            if self._bars is not None:
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=of)
                self._bars.update(self._tasks[name], completed=done, total=of)
                return
            step = done * STEPS // of
            if done < of and step > self._said.get(name, 0):
                self._said[name] = step
                logger.info("%s: %d %% of the source is read", name, 100 * done // of)


def conclude(report: PipelineReport, repaired: list[str]) -> None:
    """The outcome, a line for each table and one for each key that differs."""
    name = report.pipeline
    if report.refused:
        print_line("warn", f"pipeline {name} is not verified: {report.refused}")
        return
    if report.seed:
        print(f"  sample drawn with --seed {report.seed}")
    for table in report.tables:
        _print_table(name, table, was_repaired=table.table in repaired)
    if not report.tables:
        print_line("warn", f"pipeline {name} has no tables")


def _print_table(pipeline: str, table: TableReport, *, was_repaired: bool) -> None:
    name = f"{pipeline}: {table.table}"
    if table.refused:
        print_line("warn", f"{name} is not verified: {table.refused}")
        return
    rows = f"{table.rows} rows" if table.sample is None else f"{table.rows} rows of a sample"
    told = f"compared at {table.position} in {table.seconds:.1f} s"
    if table.in_flight:
        told += f", {table.in_flight} rows in flight left out"
    for column, why in table.left_out.items():
        told += f", without {column}: {why}"
    if table.equal:
        repaired = "repaired; " if was_repaired else ""
        print_line("ok", f"{name} is equal: {repaired}{rows} {told}")
        return
    counts = {"missing": table.missing, "extra": table.extra, "different": table.different}
    found = ", ".join([f"{count} {kind}" for kind, count in counts.items() if count])
    found = ", ".join(filter(None, (table.note, found)))
    repairable = table.key and table.differing and not was_repaired
    hint = "To read those rows again: --repair" if repairable else ""
    print_line("fail", f"{name} differs: {found}; {rows} {told}", hint)
    for one in table.differences[:SHOWN]:
        columns = f" in {', '.join(one.columns)}" if one.columns else ""
        pairs = zip(table.key, one.key, strict=True)
        key = ", ".join(f"{column} = {'NULL' if text is None else text}" for column, text in pairs)
        print(f"    {one.kind}: {key}{columns}")
    if table.differing > SHOWN and table.key:
        print(f"    … {table.differing - min(SHOWN, len(table.differences))} more")
