"""What ``pgtide run`` shows: a table that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from pgtide.cli.marks import print_line
from pgtide.cli.pipeline_facts import state_document
from pgtide.cli.quantities import duration, size
from pgtide.cli.rendering import error_document
from pgtide.config import Config
from pgtide.errors import PgtideError
from pgtide.log.reader import Log
from pgtide.log.snapshot import Snapshot
from pgtide.pipeline.lag import Lag, lag_of

if TYPE_CHECKING:
    from rich.table import Table

    from pgtide.pipeline.supervisor import Member, Supervisor

logger = logging.getLogger("pgtide.run")

LINE_INTERVAL_S = 10.0
TABLE_INTERVAL_S = 2.0
TABLES_SHOWN = 12


@dataclass(frozen=True)
class _Line:
    """One stage: capture, or a pipeline."""

    name: str
    status: str
    per_second: float
    lag: Lag | None
    tables: dict[str, int]
    parked: int

    def text(self) -> str:
        parts = [f"{self.name} {self.status}", f"{self.per_second:.0f}/s"]
        if self.lag is not None:
            parts.append(_behind(self.lag))
        if self.parked:
            parts.append(f"{self.parked} tables parked")
        return ", ".join(parts)


class RunReporter:
    """Called often by the supervisor; says something now and then."""

    def __init__(self, config: Config, *, quiet: bool) -> None:
        self._log = Log(config.log.path, config.log.storage)
        self._quiet = quiet
        self._live: Any = None
        self._said_at = time.monotonic()
        self._rows: dict[str, int] = {}

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, supervisor: Supervisor) -> None:
        elapsed = time.monotonic() - self._said_at
        if self._quiet or elapsed < (TABLE_INTERVAL_S if self._live else LINE_INTERVAL_S):
            return
        self._said_at += elapsed
        try:
            snapshot = self._log.snapshot()
        except PgtideError:
            return  # whoever works with the log says what is wrong with it
        lines = [_capture(supervisor), *self._pipelines(supervisor, snapshot, elapsed)]
        if self._live is not None:
            self._live.update(_table(lines), refresh=True)
        else:
            logger.info("; ".join(line.text() for line in lines))

    def _pipelines(self, supervisor: Supervisor, snapshot: Snapshot, elapsed: float) -> list[_Line]:
        lines = []
        for member in supervisor.members.values():
            state = member.state
            rows = state.rows if state is not None else 0
            rate = (rows - self._rows.get(member.name, rows)) / elapsed
            self._rows[member.name] = rows
            lines.append(
                _Line(
                    name=member.name,
                    status=member.status,
                    per_second=rate,
                    lag=lag_of(state, snapshot, datetime.now(UTC)) if state else None,
                    tables=state.table_rows if state else {},
                    parked=len(state.parked) if state else 0,
                )
            )
        return lines

    def conclude(self, supervisor: Supervisor) -> None:
        """The last word, on stdout."""
        progress = supervisor.capture.progress
        if progress:
            said = f"captured {progress['events']} events, the log is at {progress['position']}"
            print_line("ok", said)
        for member in supervisor.members.values():
            conclude_member(member)


def conclude_member(member: Member) -> None:
    """What became of one pipeline."""
    state = member.state
    if member.status == "failed" and member.error is not None:
        more = "\n".join(filter(None, [member.error.detail, member.error.hint]))
        print_line("fail", f"{member.name} failed: {member.error.message}", more)
    elif state is not None:
        said = f"{member.name} {member.status}, {state.rows} rows, at {state.position}"
        print_line("ok", said)
    else:
        print_line("warn", f"{member.name} {member.status}")
    for name, parked in sorted(state.parked.items() if state is not None else ()):
        retry = f"Then: pgtide resume --pipeline {member.name} --table {name}"
        more = "\n".join(filter(None, [parked.detail, parked.hint, retry]))
        print_line("fail", f"{member.name} parked {name}: {parked.message}", more)


def summary(supervisor: Supervisor) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "capture": supervisor.capture.progress or None,
        "pipelines": {
            name: {
                "status": member.status,
                **state_document(member.state),
                "tables": member.state.table_rows if member.state else {},
                "error": _failure(member),
            }
            for name, member in supervisor.members.items()
        },
    }


def _failure(member: Member) -> dict[str, Any] | None:
    if member.status != "failed" or member.error is None:
        return None
    return error_document(member.error)


def _capture(supervisor: Supervisor) -> _Line:
    facts = supervisor.capture.progress
    lag = Lag(facts["lag_bytes"], None) if facts else None
    rate = facts.get("events_per_second", 0.0)
    return _Line("capture", facts.get("gear", "starting"), rate, lag, {}, 0)


def _behind(lag: Lag) -> str:
    if not lag.bytes:
        return "current"
    text = f"{size(lag.bytes)} behind"
    return f"{text}, {duration(lag.seconds)}" if lag.seconds is not None else text


def _table(lines: list[_Line]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("", "state", "rows/s", "lag", "rows by table"):
        table.add_column(title, justify="right" if title == "rows/s" else "left")
    for line in lines:
        counts = sorted(line.tables.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {rows}" for name, rows in counts[:TABLES_SHOWN])
        more = f" and {len(counts) - TABLES_SHOWN} more" if len(counts) > TABLES_SHOWN else ""
        parked = f" ({line.parked} parked)" if line.parked else ""
        lag = _behind(line.lag) if line.lag is not None else ""
        rate = f"{line.per_second:.0f}"
        table.add_row(line.name, line.status + parked, rate, lag, shown + more)
    return table
