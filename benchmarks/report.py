"""What all benchmarks share: progress lines, order statistics, and the one JSON line at the end."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_BEGAN = time.monotonic()


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of the report and the value that it has to reach, or must not exceed."""

    figure: str
    sense: Literal[">=", "<="]
    limit: float

    def met(self, value: float) -> bool:
        return value >= self.limit if self.sense == ">=" else value <= self.limit


def progress(text: str) -> None:
    """One line about what is going on, with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:7.1f} s] {text}", flush=True)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def cpu_seconds() -> float:
    """User and system time of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss_mb(process: int | Literal["self"] = "self") -> float:
    """The most memory that a running process has had, in MB of 10^6 bytes.

    ``ru_maxrss`` survives exec on Linux: a child would report its parent's memory. ``VmHWM``
    belongs to the program that runs now; where there is no /proc only ``ru_maxrss`` is left.
    """
    status = Path(f"/proc/{process}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def finish(
    name: str, figures: Mapping[str, float], bars: Sequence[Bar], runs: Any, **facts: Any
) -> int:
    """Print each bar, then everything as one JSON line; the exit code, 1 if a bar is missed."""
    checked = [
        {
            "figure": bar.figure,
            "value": _rounded(figures[bar.figure]),
            "bar": f"{bar.sense} {bar.limit:g}",
            "pass": bar.met(figures[bar.figure]),
        }
        for bar in bars
    ]
    for line in checked:
        mark = "ok    " if line["pass"] else "MISSED"
        print(f"{mark} {line['figure']} = {line['value']} (bar {line['bar']})")
    passed = all(line["pass"] for line in checked)
    document = {
        "name": name,
        **{figure: _rounded(value) for figure, value in figures.items()},
        "pass": passed,
        "bars": checked,
        **facts,
        "machine": _machine(),
        "runs": runs,
    }
    print(json.dumps(document), flush=True)
    return 0 if passed else 1


def _rounded(value: float) -> float:
    """Four significant digits: more is noise."""
    return float(f"{value:.4g}")


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
