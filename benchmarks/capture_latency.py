"""From commit at the source to readable in the log, beside the flush interval; and start-up.

Four connections make 200 small transactions a second for 30 seconds, each waiting for its
fsync; a follower in a process of its own notes when each row can be read (see ``follower``).
Once with a flush interval of 500 ms, once with 50 ms, after a warm-up.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import child, startup
from benchmarks.capturing import capturing, newest_version, wait_for_rows
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import Server, running, work_directory

CONNECTIONS = 4
INTERVALS_MS = (500, 50)
SLOT = "latency"

BARS = (
    *(Bar(f"p50_s_at_{ms}ms", "<=", ms / 1000) for ms in INTERVALS_MS),
    *(Bar(f"p99_s_at_{ms}ms", "<=", 2 * ms / 1000) for ms in INTERVALS_MS),
    *startup.BARS,
)


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory, running(directory) as server:
        progress(f"starting capture {1 + startup.TIMES} times")
        log = _prepare(server)
        config = server.configure(SLOT)
        starts = startup.startup_seconds(server, config, log)
        helps = startup.help_seconds()
        runs = [_measure(server, log, ms, options) for ms in INTERVALS_MS]
    return finish(
        "capture_latency",
        _figures(runs) | {"startup_s": median(starts), "help_s": median(helps)},
        BARS,
        {"latency": runs, "startup": starts, "help": helps},
        rate=options.rate,
        seconds=options.seconds,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def _prepare(server: Server) -> Path:
    """Tables, slot and log; the log's path."""
    with server.connect() as conn:
        conn.execute("CREATE TABLE marker (id bigint PRIMARY KEY, note text)")
        conn.execute("CREATE TABLE warm (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    server.init(SLOT)
    return server.directory / SLOT


def _measure(server: Server, log: Path, ms: int, options: argparse.Namespace) -> dict[str, Any]:
    config = server.configure(SLOT, name=f"{SLOT}_{ms}", flush_interval=f"{ms}ms")
    expected = options.rate * options.seconds
    with capturing(config) as usage:
        _warm_up(server, log)
        follower = child.start("follower", str(log), "public.marker", str(expected))
        assert follower.stdout is not None
        follower.stdout.readline()
        progress(f"flush interval {ms} ms: {options.rate}/s for {options.seconds} s")
        took = _commit(server, options.rate, expected, first=ms * 10**9)
        found = child.answer(follower)
    progress(
        f"p50 {found['p50_s'] * 1000:.0f} ms, p99 {found['p99_s'] * 1000:.0f} ms,"
        f" of which the follower {found['follower_p50_s'] * 1000:.0f} ms (p50)"
    )
    return {
        "flush_interval_s": ms / 1000,
        "committed_per_s": expected / took,
        **found,
        "cpu_s": usage.cpu_s,
        "peak_rss_mb": usage.peak_rss_mb,
    }


def _warm_up(server: Server, log: Path) -> None:
    """Return when capture is up and has flushed a few times."""
    for _ in range(10):
        version = newest_version(log)
        with server.connect() as conn:
            conn.execute("INSERT INTO warm DEFAULT VALUES")
        wait_for_rows(log, version)


def _commit(server: Server, rate: int, count: int, *, first: int) -> float:
    """Commit rows at a steady rate on several connections; the seconds it took."""
    began = time.monotonic()

    def worker(offset: int) -> None:
        with server.connect() as conn:
            for number in range(offset, count, CONNECTIONS):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                conn.execute("INSERT INTO marker VALUES (%s, 'a small row')", [first + number])

    workers = [threading.Thread(target=worker, args=[n]) for n in range(CONNECTIONS)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    return time.monotonic() - began


def _figures(runs: list[dict[str, Any]]) -> dict[str, float]:
    quotients = [run["flush_interval_s"] / run["p50_s"] for run in runs]
    named = {
        f"{p}_s_at_{run['flush_interval_s'] * 1000:.0f}ms": run[f"{p}_s"]
        for p in ("p50", "p99")
        for run in runs
    }
    return {
        "ratio": min(quotients),  # interval / p50, the worse of the two
        "limit_s": runs[0]["flush_interval_s"],
        "pgtide_s": runs[0]["p50_s"],
        **named,
        "follower_p50_s": max(run["follower_p50_s"] for run in runs),
        "cpu_s": max(run["cpu_s"] for run in runs),
        "peak_rss_mb": max(run["peak_rss_mb"] for run in runs),
    }


if __name__ == "__main__":
    sys.exit(main())
