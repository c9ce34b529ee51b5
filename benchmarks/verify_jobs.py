"""A child of ``verify``: makes the mirror, then times both sides in one warm session."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

import pgtide
from benchmarks.pipeline_jobs import cpu_seconds, peak_mb
from benchmarks.report import progress
from pgtide.config import load
from pgtide.config.model import Pipeline
from pgtide.pipeline.running import PipelineRun
from pgtide.verify.verifying import Verification

LIMIT = "SELECT count(*), sum(hashtext(t::text)) FROM t"
PIPELINE = "lake"
WARM_RUNS = 2


def main(file: str, rows: str, runs: str) -> None:
    config = load(Path(file), {})
    sink = {"type": "delta", "path": f"{config.log.path}-lake"}
    wanted = Pipeline.model_validate({"sink": sink})
    config = config.model_copy(update={"pipelines": {PIPELINE: wanted}})
    spark = pgtide.session()
    PipelineRun(spark, config, PIPELINE).run(until_current=True)
    progress("the mirror is made")

    def ours() -> float:
        began = time.perf_counter()
        (table,) = Verification(spark, config, PIPELINE).run().tables
        seconds = time.perf_counter() - began
        if not table.equal or table.rows != int(rows):
            raise SystemExit(f"the mirror is not equal: {table}")
        return seconds

    def limit() -> float:
        began = time.perf_counter()
        with psycopg.connect(config.source.url.reveal()) as connection:
            connection.execute(LIMIT).fetchone()
        return time.perf_counter() - began

    limit()
    warm = [ours() for _ in range(WARM_RUNS)]
    figures: dict[str, Any] = {"limit": [], "pgtide": [], "cold_s": warm[0]}
    before = cpu_seconds()
    for run in range(int(runs)):
        figures["limit"].append(limit())
        figures["pgtide"].append(ours())
        line = "  ".join(f"{name} {figures[name][-1]:.2f} s" for name in ("limit", "pgtide"))
        progress(f"run {run + 1}  {line}")
    figures["cpu_s"] = (cpu_seconds() - before) / int(runs)
    figures["peak_rss_mb"] = peak_mb()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
