"""A child of ``pipeline``: the Spark jobs of both sides, timed in one warm JVM."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pgtide
from benchmarks.report import progress
from pgtide.config import Config, load
from pgtide.config.model import Pipeline
from pgtide.pipeline.running import PipelineRun

# The key, and the columns by place and type, as somebody would write them down.
TABLES = {
    "pgbench_accounts": (1, ["int", "int", "int", "string"]),
    "pgbench_tellers": (1, ["int", "int", "int", "string"]),
    "pgbench_branches": (1, ["int", "int", "string"]),
    "pgbench_history": (0, ["int", "int", "int", "int", "timestamp_ntz", "string"]),
}
Job = Callable[[SparkSession, Config, int | None], dict[str, int] | None]  # rows by table
WARM_RUNS = 8  # Java is still compiling in the sixth


def main(warm: str, loaded: str, changes: str, runs: str) -> None:
    spark = pgtide.session()
    jobs: dict[str, Job] = {"decode": decode, "limit": by_hand, "pgtide": mirror}
    figures: dict[str, Any] = {name: [] for name in (*jobs, "query")}
    for log in [warm, *[loaded] * WARM_RUNS]:
        for job in jobs.values():
            job(spark, load(Path(log), {}), None)
    before = cpu_seconds()
    for run in range(int(runs)):
        counts = {}
        for name, job in jobs.items():
            began = time.perf_counter()
            counts[name] = job(spark, load(Path(loaded), {}), int(changes))
            elapsed, aside = time.perf_counter() - began, CHECKING.pop()
            figures[name].append(elapsed - aside)
            figures["query"] += [aside] if name == "decode" else []
        if counts["pgtide"] != counts["limit"]:
            raise SystemExit(f"{counts['pgtide']} rows, by hand {counts['limit']}")
        line = "  ".join(f"{name} {times[-1]:.2f} s" for name, times in figures.items())
        progress(f"run {run + 1}  {line}")
    figures["cpu_s"] = (cpu_seconds() - before) / int(runs)
    figures["peak_rss_mb"] = peak_mb()
    print(json.dumps(figures))


CHECKING = [0.0]  # seconds of a run that do not count: checking the result, writing a query


def decode(spark: SparkSession, config: Config, changes: int | None) -> None:
    """Every change of every table, typed, into nothing; the query is written down before."""
    began = time.perf_counter()
    frame = pgtide.changes(spark, config.log.path, [f"public.{table}" for table in TABLES])
    CHECKING.append(time.perf_counter() - began)
    frame.write.format("noop").mode("overwrite").save()


def by_hand(spark: SparkSession, config: Config, changes: int | None) -> dict[str, int]:
    """The limit: what somebody would write for just these tables."""
    lake = _new_directory(config)
    for table, (keys, types) in TABLES.items():
        log = spark.read.format("delta").load(f"{config.log.path}/changes")
        rows = log.filter((F.col("table") == table) & F.col("op").isin("insert", "update"))
        values = [
            F.get("after", F.lit(i)).cast(kind).alias(f"c{i}") for i, kind in enumerate(types)
        ]
        typed = rows.select("lsn", "seq", *values)
        if keys:
            rest = F.struct(*[name for name in typed.columns if name != "c0"])
            newest = F.max_by(rest, F.struct("lsn", "seq")).alias("newest")
            typed = typed.groupBy("c0").agg(newest).select("c0", "newest.*")
        typed.write.format("delta").save(str(lake / table))
    counts = _check(spark, {table: str(lake / table) for table in TABLES}, changes)
    shutil.rmtree(lake)
    return counts


def mirror(spark: SparkSession, config: Config, changes: int | None) -> dict[str, int]:
    """pgtide's mirrors of the same tables."""
    lake = _new_directory(config)
    wanted = Pipeline.model_validate(
        {"tables": ["public.pgbench_*"], "sink": {"type": "delta", "path": str(lake)}}
    )
    config = config.model_copy(update={"pipelines": {"lake": wanted}})
    PipelineRun(spark, config, "lake").run(until_current=True)
    counts = _check(spark, {table: str(lake / "public" / table) for table in TABLES}, changes)
    shutil.rmtree(lake)
    shutil.rmtree(f"{config.log.path}/pipelines")
    return counts


def _new_directory(config: Config) -> Path:
    """Nobody has been there: Delta remembers tables by their paths."""
    return Path(config.log.path).with_name(f"lake-{time.monotonic_ns()}")


def _check(spark: SparkSession, paths: dict[str, str], changes: int | None) -> dict[str, int]:
    """All rows are there: a side that is fast because it does less must not count."""
    began = time.perf_counter()
    counts = {table: _count(spark.read.format("delta").load(path)) for table, path in paths.items()}
    if changes is not None and counts["pgbench_history"] != changes // 4:
        raise SystemExit(f"{counts['pgbench_history']} rows of pgbench_history, not {changes // 4}")
    CHECKING.append(time.perf_counter() - began)
    return counts


def _count(frame: DataFrame) -> int:
    return frame.count()


def _processes() -> list[Path]:
    """This process and its JVM."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [Path("/proc/self"), *(Path(f"/proc/{child}") for child in children)]


def cpu_seconds() -> float:
    """User and system time of this process and its children, the JVM among them."""
    ticks = 0
    for process in _processes():
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_mb() -> float:
    """The most memory that they have had, each by itself, in MB."""
    peaks = [
        int(line.split()[1])
        for process in _processes()
        for line in (process / "status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return sum(peaks) * 1024 / 1e6


if __name__ == "__main__":
    main(*sys.argv[1:])
