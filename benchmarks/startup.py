"""How long ``pgtide capture`` takes from exec to its first row in the log, and ``pgtide --help``.

Caches are warm, as on every start but the first: one start of each goes before. A row waits
in the slot each time, and the flush interval is part of the time.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import child
from benchmarks.capturing import Usage, capturing, newest_version, wait_for_rows
from benchmarks.report import Bar, median, progress
from benchmarks.server import Server

TIMES = 5

BARS = (Bar("startup_s", "<=", 3.0), Bar("help_s", "<=", 0.4))


def help_seconds() -> list[float]:
    times = [child.timed([child.PGTIDE, "--help"]).seconds for _ in range(1 + TIMES)][1:]
    progress(f"pgtide --help: {median(times):.3f} s")
    return times


def startup_seconds(server: Server, config: Path, log: Path) -> list[float]:
    """Start capture on a slot where one row of the table ``warm`` waits, again and again."""
    times = []
    for _ in range(1 + TIMES):
        with server.connect() as conn:
            conn.execute("INSERT INTO warm DEFAULT VALUES")
        version = newest_version(log)
        began = time.perf_counter()
        with capturing(config) as usage:
            wait_for_rows(log, version)
            times.append(time.perf_counter() - began)
    progress(f"pgtide capture, first row: {median(times[1:]):.3f} s; {_said(usage)}")
    return times[1:]


def _said(usage: Usage) -> str:
    return f"{usage.cpu_s:.2f} s CPU, {usage.peak_rss_mb:.0f} MB"
