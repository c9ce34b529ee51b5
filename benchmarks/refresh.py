"""A refresh while others write: its rows a second, and what it does to them and to the stream.

Five million rows of eight columns, as for the snapshot. pgbench makes a steady load, and rows of a
small table tell how long a change takes into the log (see ``follower``): at first alone, then with
a refresh at the default rate, then with one that has no limit. What a refresh takes from writers
that take all they can get is measured as well, by a pgbench without a rate. The limit that rows a
second are held against is ``COPY large TO STDOUT`` by one psql, in the same run and beside the same
load.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import child, pgbench
from benchmarks.capturing import capturing
from benchmarks.report import Bar, finish, progress
from benchmarks.server import Server, running, work_directory
from benchmarks.snapshot import copies, make_table
from pgtide.capture.refresh_service import DEFAULT_RATE
from pgtide.config import load
from pgtide.log.refreshes import Refresh, Standing
from pgtide.snapshot.asking import ask, wait_for

SLOT = "refresh"
TRANSACTIONS_PER_S = 300  # of pgbench
MARKERS_PER_S = 100
SCALE = 10

BARS = (
    Bar("rows_per_second", ">=", 150_000),
    Bar("lag_p99_ratio", "<=", 2.0),
)


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory, running(directory) as server:
        make_table(server, "large", options.rows)
        pgbench.make_tables(server, SCALE)
        with server.connect() as conn:
            conn.execute("CREATE TABLE marker (id bigint PRIMARY KEY, note text)")
        config = server.init(SLOT)
        with capturing(config) as usage:
            runs = {
                "warm": _measure(server, config, 5, None),
                "idle": _measure(server, config, options.seconds, None),
                "default": _measure(server, config, options.seconds, _part(options)),
                "unlimited": _unlimited(server, config, options),
                "busy": _busy(server, config, options, None),
                "busy_default": _busy(server, config, options, _part(options)),
            }
        copy = _beside_load(server, 5, lambda: copies(server, 1)["seconds"])
    return finish("refresh", _figures(runs, copy, options.rows, usage), BARS, runs, copy_s=copy)


def _figures(
    runs: dict[str, dict[str, Any]], copy: float, rows: int, usage: Any
) -> dict[str, float]:
    idle, default, unlimited = runs["idle"], runs["default"], runs["unlimited"]
    return {
        "rows_per_second": rows / unlimited["seconds"],
        "copy_rows_per_second": rows / copy,
        "ratio": copy / unlimited["seconds"],
        "lag_p99_ratio": default["p99_s"] / idle["p99_s"],
        "lag_p50_s": idle["p50_s"],
        "lag_p99_s": idle["p99_s"],
        "lag_p99_s_default": default["p99_s"],
        "tps": idle["tps"],
        "tps_default": default["tps"],
        "tps_unlimited": unlimited["tps"],
        "tps_busy": runs["busy"]["tps"],
        "tps_busy_default": runs["busy_default"]["tps"],
        "writer_latency_ms": idle["latency_ms"],
        "writer_latency_ms_default": default["latency_ms"],
        "writer_latency_ms_unlimited": unlimited["latency_ms"],
        "default_rate": DEFAULT_RATE,
        "capture_cpu_s": usage.cpu_s,
        "capture_peak_mb": usage.peak_rss_mb,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def _part(options: argparse.Namespace) -> Refresh:
    """So many rows that a refresh at the default rate outlasts what is measured."""
    last = min(options.rows, DEFAULT_RATE * (options.seconds + 10))
    return Refresh("public.large", low="1", high=str(last))


def _measure(server: Server, config: Path, seconds: int, refresh: Refresh | None) -> dict[str, Any]:
    """Lag of the stream and the writers' speed, with or without a refresh beside them."""
    progress(f"{seconds} s {'with a refresh at the default rate' if refresh else 'alone'}")
    settings = load(config)
    if refresh is not None:
        ask(settings, refresh)
    log = server.directory / SLOT
    expected = MARKERS_PER_S * seconds
    follower = child.start("follower", str(log), "public.marker", str(expected))
    assert follower.stdout is not None
    follower.stdout.readline()
    bench = _start_pgbench(server, seconds)
    _commit_markers(server, seconds)
    found = child.answer(follower)
    writers = _speed(bench)
    if refresh is not None:
        found["refreshed"] = wait_for(settings, refresh.id).rows
    progress(f"lag p50 {found['p50_s'] * 1000:.0f} ms, p99 {found['p99_s'] * 1000:.0f} ms")
    return {**found, **writers}


def _unlimited(server: Server, config: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The whole table without a limit, beside pgbench."""
    settings = load(config)
    request = Refresh("public.large", max_rate=0)
    benches = [_start_pgbench(server, options.seconds)]

    def write_on(_: Standing) -> None:
        if benches[-1].poll() is not None:
            benches.append(_start_pgbench(server, options.seconds))

    began = time.perf_counter()
    ask(settings, request)
    standing = wait_for(settings, request.id, on_progress=write_on)
    seconds = time.perf_counter() - began
    progress(f"{standing.rows} rows in {seconds:.1f} s, {standing.rows / seconds:.0f} a second")
    if standing.rows + standing.dropped < options.rows:
        raise SystemExit(f"{standing.rows} rows were read, the table has {options.rows}")
    speeds = [_speed(bench) for bench in benches]
    return {"seconds": seconds, "rows": standing.rows, "dropped": standing.dropped, **speeds[0]}


def _busy(
    server: Server, config: Path, options: argparse.Namespace, refresh: Refresh | None
) -> dict[str, Any]:
    """Writers that take all they can get, with or without a refresh at the default rate."""
    settings = load(config)
    if refresh is not None:
        ask(settings, refresh)
    found = _speed(_start_pgbench(server, options.seconds, rate=None))
    if refresh is not None:
        wait_for(settings, refresh.id)
    progress(f"pgbench without a rate: {found['tps']:.0f} transactions a second")
    return found


def _beside_load(server: Server, seconds: int, job: Any) -> float:
    bench = _start_pgbench(server, seconds)
    took: float = job()
    bench.wait()
    return took


def _commit_markers(server: Server, seconds: int) -> None:
    began = time.monotonic()
    first = time.time_ns()
    with server.connect() as conn:
        for number in range(MARKERS_PER_S * seconds):
            time.sleep(max(0.0, began + number / MARKERS_PER_S - time.monotonic()))
            conn.execute("INSERT INTO marker VALUES (%s, 'a small row')", [first + number])


def _start_pgbench(
    server: Server, seconds: int, *, rate: int | None = TRANSACTIONS_PER_S
) -> subprocess.Popen[str]:
    limit = [] if rate is None else ["-R", str(rate)]
    arguments = ["-n", "-c", "4", *limit, "-T", str(seconds), "postgres"]
    return subprocess.Popen(
        server.tool("pgbench", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child.environment(),
    )


def _speed(bench: subprocess.Popen[str]) -> dict[str, float]:
    """What pgbench says at its end."""
    said, _ = bench.communicate()
    tps = re.search(r"tps = ([\d.]+)", said)
    latency = re.search(r"latency average = ([\d.]+) ms", said)
    if bench.returncode or tps is None or latency is None:
        raise SystemExit(f"pgbench failed: {said}")
    return {"tps": float(tps[1]), "latency_ms": float(latency[1])}


if __name__ == "__main__":
    sys.exit(main())
