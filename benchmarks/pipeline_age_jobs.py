"""A child of ``pipeline_age``: the jobs of ``pipeline_jobs`` on a fresh and on an old log."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pgtide
from benchmarks.pipeline_jobs import CHECKING, WARM_RUNS, decode, mirror
from benchmarks.report import progress
from pgtide.config import load


def main(fresh: str, old: str, changes: str, runs: str) -> None:
    spark = pgtide.session()
    logs = {"fresh": load(Path(fresh), {}), "old": load(Path(old), {})}
    jobs = {"decode": decode, "mirror": mirror}
    times: dict[str, list[float]] = {f"{job}_{log}": [] for log in logs for job in jobs}
    for run in range(-WARM_RUNS, int(runs)):
        for log, config in logs.items():
            for name, job in jobs.items():
                began = time.perf_counter()
                job(spark, config, int(changes))
                if run >= 0:
                    elapsed = time.perf_counter() - began - CHECKING.pop()
                    times[f"{name}_{log}"].append(elapsed)
        line = "  ".join(f"{name} {found[-1]:.2f} s" for name, found in times.items() if found)
        progress(f"run {run + 1}  {line}" if line else "warming up")
    print(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
