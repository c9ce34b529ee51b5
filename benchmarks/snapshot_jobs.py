"""A child of ``snapshot``: one Spark session that takes snapshots as it is told to.

It reads a configuration file's path per line, and answers with a line of JSON: seconds, CPU
seconds of Python and Java together, and the peaks of memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from benchmarks import child
from benchmarks.processes import descendants


class Jobs:
    """The child as its parent sees it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.snapshot_jobs"],
            cwd=child.ROOT,
            env=child.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, config: Path, rows: int) -> dict[str, Any]:
        """One snapshot, which must have that many rows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(config, file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        if found.pop("rows") != rows:
            raise SystemExit(f"the snapshot does not have {rows} rows")
        return found


def main() -> None:
    from pgtide.cli.snapshot import copying_session
    from pgtide.config import load
    from pgtide.snapshot.initial import InitialSnapshot

    spark = None
    for line in sys.stdin:
        config = load(Path(line.strip()), {})
        spark = spark or copying_session(config)
        # Python's own workers are started by the first job.
        spark.sparkContext.parallelize(range(2), 2).count()
        snapshot = InitialSnapshot(config, spark)
        before, began = _cpu_seconds(), time.perf_counter()
        assert snapshot.take()
        seconds = time.perf_counter() - began
        cpu = {kind: value - before.get(kind, 0.0) for kind, value in _cpu_seconds().items()}
        peaks = {each.name: each.peak_mb for each in descendants()}
        workers = [peak for name, peak in peaks.items() if name.startswith("python")]
        print(
            json.dumps(
                {
                    "rows": snapshot.progress.rows,
                    "seconds": seconds,
                    "cpu_s": sum(cpu.values()),
                    **{f"{kind}_cpu_s": round(value, 2) for kind, value in cpu.items()},
                    "task_peak_mb": max(workers, default=0.0),
                    "python_peak_mb": sum(workers),
                    "driver_peak_mb": peaks["driver"],
                    "java_peak_mb": sum(p for n, p in peaks.items() if n.startswith("java")),
                }
            ),
            flush=True,
        )
    if spark is not None:
        spark.stop()


def _cpu_seconds() -> dict[str, float]:
    """By kind of process: driver, java, python (the tasks)."""
    found: dict[str, float] = {}
    for each in descendants():
        kind = each.name.split()[0]
        found[kind] = found.get(kind, 0.0) + each.cpu_s
    return found


if __name__ == "__main__":
    main()
