"""``pgtide capture`` as a user runs it: started, watched from outside, stopped by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import child
from benchmarks.report import peak_rss_mb
from pgtide.log.schema import CHANGES
from pgtide.log.table import commit_path

POLL_S = 0.002
PATIENCE_S = 60.0


@dataclass(slots=True)
class Usage:
    """What the process took from its start to its end."""

    cpu_s: float = 0.0
    peak_rss_mb: float = 0.0


@contextmanager
def capturing(config: Path) -> Iterator[Usage]:
    """Run ``pgtide capture``; the usage is filled in when it has ended."""
    process = subprocess.Popen(
        [child.PGTIDE, "-c", config, "--log-level", "warning", "capture"],
        env=child.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    usage = Usage()
    try:
        yield usage
    finally:
        usage.peak_rss_mb = peak_rss_mb(process.pid)
        process.send_signal(signal.SIGTERM)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        usage.cpu_s = used.ru_utime + used.ru_stime
    if process.returncode:
        raise SystemExit(f"pgtide capture ended with exit code {process.returncode}")


def newest_version(log: Path) -> int:
    """The Delta version of the log's newest commit."""
    commits = (log / CHANGES / "_delta_log").glob("*.json")
    return max(int(file.stem) for file in commits if file.stem.isdigit())


def wait_for_rows(log: Path, version: int) -> None:
    """Return as soon as a commit after ``version`` has added rows."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        file = log / CHANGES / commit_path(version + 1)
        if not file.exists():
            time.sleep(POLL_S)
        elif '"add"' in file.read_text():
            return
        else:
            version += 1
    raise SystemExit(f"no row reached the log within {PATIENCE_S:.0f} s")
