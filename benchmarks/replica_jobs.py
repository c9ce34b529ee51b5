"""A child of ``replica``: captures and applies in one warm session, when it is told to."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pgtide
from benchmarks.pipeline_jobs import cpu_seconds, peak_mb
from benchmarks.report import progress
from pgtide.capture.engine import Capture
from pgtide.config import load
from pgtide.pipeline.running import PipelineRun


def main(runs: str, *configs: str) -> None:
    spark = pgtide.session()
    figures: dict[str, Any] = {"pgtide": [], "capture": [], "apply": []}

    def catch_up(file: str) -> tuple[float, float]:
        config = load(Path(file), {})
        began = time.perf_counter()
        Capture(config).run(until_current=True)
        captured = time.perf_counter()
        PipelineRun(spark, config, "replica").run(until_current=True)
        return captured - began, time.perf_counter() - captured

    warm, timed = configs[: -int(runs)], configs[-int(runs) :]
    for file in warm:
        captured, applied = catch_up(file)
        figures.setdefault("cold", captured + applied)  # by Java that has just been started
        progress(f"warming up  capture {captured:.2f} s  apply {applied:.2f} s")
    used = 0.0
    for file in timed:
        print("ready", flush=True)
        sys.stdin.readline()
        before = cpu_seconds()
        captured, applied = catch_up(file)
        used += cpu_seconds() - before
        figures["capture"].append(captured)
        figures["apply"].append(applied)
        figures["pgtide"].append(captured + applied)
        progress(f"pgtide {captured + applied:.2f} s  (capture {captured:.2f} s)")
    figures["cpu_s"] = used / int(runs)
    figures["peak_rss_mb"] = peak_mb()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
