"""Rows a second of an initial snapshot into a durable log, against ``COPY … TO STDOUT``.

Five million rows of eight columns of mixed types. The limit is psql with its output thrown
away: one COPY, and two at a time, each of one half of the table's pages. pgtide reads with two
tasks into a new log each time, everything from the locks to the advanced slot included. The
three take turns. Starting Java and the Spark session is not part of the time: one session is
started before, see ``snapshot_jobs``, and takes one snapshot of a smaller table to warm up,
whose memory is the measure for that of the large one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import Server, running, work_directory
from benchmarks.snapshot_jobs import Jobs

TABLE = """
CREATE TABLE {name} (
    id bigint PRIMARY KEY, customer int NOT NULL, name text NOT NULL, total numeric(12, 2),
    created timestamptz NOT NULL, open boolean NOT NULL, score double precision, token uuid)
"""
ROWS = """
INSERT INTO {name} SELECT n, n % 1000003, 'customer number ' || n % 100000,
    CASE WHEN n % 10 > 0 THEN (n % 1000000) / 100.0 END,
    timestamptz '2024-01-01 00:00:00+00' + n * interval '1.000137 second',
    n % 3 = 0, sqrt(n), md5(n::text)::uuid
FROM generate_series(1, {rows}) n
"""
SMALL_SHARE = 5  # the table to warm up with has this part of the rows

BARS = (
    Bar("ratio", ">=", 0.6),
    Bar("memory_growth", "<=", 1.25),
)


def main() -> int:
    options = _options()
    runs: dict[str, list[Any]] = {"one": [], "two": [], "pgtide": []}
    with work_directory(options.directory) as directory, running(directory) as server:
        make_table(server, "small", options.rows // SMALL_SHARE)
        make_table(server, "large", options.rows)
        slots = [f"run_{number}" for number in range(options.runs)]
        warm = _init(server, "warm", "small")
        configs = [_init(server, slot, "large") for slot in slots]
        with Jobs() as jobs:
            small = jobs.run(warm, options.rows // SMALL_SHARE)
            progress(f"warm: {small['seconds']:.2f} s for {options.rows // SMALL_SHARE} rows")
            for config in configs:
                runs["one"].append(copies(server, 1))
                runs["two"].append(copies(server, 2))
                runs["pgtide"].append(jobs.run(config, options.rows))
                last = {name: values[-1]["seconds"] for name, values in runs.items()}
                progress("  ".join(f"{name} {seconds:.2f} s" for name, seconds in last.items()))
    seconds = {name: median([run["seconds"] for run in found]) for name, found in runs.items()}
    figures = {
        "ratio": seconds["two"] / seconds["pgtide"],
        "ratio_one_stream": seconds["one"] / seconds["pgtide"],
        "rows_per_second": options.rows / seconds["pgtide"],
        "two_streams_rows_per_second": options.rows / seconds["two"],
        "cpu_s": median([run["cpu_s"] for run in runs["pgtide"]]),
        "copy_cpu_s": median([run["cpu_s"] for run in runs["two"]]),
        "task_peak_mb": max(run["task_peak_mb"] for run in runs["pgtide"]),
        "driver_peak_mb": max(run["driver_peak_mb"] for run in runs["pgtide"]),
        # Driver, which is Python and Java, and tasks together; and the tasks alone.
        "memory_growth": max(map(_memory, runs["pgtide"])) / _memory(small),
        "task_memory_growth": max(run["python_peak_mb"] for run in runs["pgtide"])
        / small["python_peak_mb"],
    }
    return finish("snapshot", figures, BARS, runs, rows=options.rows, warm=small)


def _memory(run: dict[str, Any]) -> float:
    return float(run["python_peak_mb"] + run["driver_peak_mb"] + run["java_peak_mb"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def make_table(server: Server, name: str, rows: int) -> None:
    progress(f"{rows} rows of table {name}")
    with server.connect() as conn:
        conn.execute(TABLE.format(name=name).encode())
        conn.execute(ROWS.format(name=name, rows=rows).encode())
        # Hint bits and visibility are not what is measured.
        conn.execute(f"VACUUM (FREEZE) {name}".encode())
        conn.execute("CHECKPOINT")


def _init(server: Server, slot: str, table: str) -> Path:
    return server.init(
        slot,
        source={"tables": [f"public.{table}"], "snapshot": "initial"},
        history={"parallelism": 2},
        spark={"master": "local[2]"},
    )


def copies(server: Server, streams: int) -> dict[str, float]:
    """That many psql at a time, each with its share of the pages."""
    with server.connect() as conn:
        row = conn.execute("SELECT pg_relation_size('large') / 8192").fetchone()
    assert row is not None
    bounds = [row[0] * number // streams for number in range(streams)]
    queries = ["COPY large TO STDOUT"]
    if streams > 1:
        ends = [f" AND ctid < '({end},0)'" for end in bounds[1:]] + [""]
        queries = [
            f"COPY (SELECT * FROM large WHERE ctid >= '({begin},0)'{end}) TO STDOUT"
            for begin, end in zip(bounds, ends, strict=True)
        ]
    began = time.perf_counter()
    processes = [
        subprocess.Popen(
            server.tool("psql", "-d", "postgres", "-X", "-q", "-c", query),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=child.environment(),
        )
        for query in queries
    ]
    cpu = sum(child.wait(process).cpu_s for process in processes)
    return {"seconds": time.perf_counter() - began, "cpu_s": cpu}


if __name__ == "__main__":
    sys.exit(main())
