"""The runs of ``pipeline`` and ``freshness`` on a log with 50 000 commits behind it.

Two slots see the same pgbench transactions. The log of one is fresh; that of the other was made
old before (see ``aged_log``), maintenance ran by itself meanwhile. Then one warm JVM takes both in
turn: decoding, and mirrors from scratch. Freshness is measured on a server with a fresh log and on
one with an old log, one after the other. Ratios are old / fresh.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import child, freshness
from benchmarks.pgbench import CHANGES_PER_TRANSACTION, make_tables, run_transactions
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import running, work_directory

BARS = tuple(Bar(f"ratio_{what}", "<=", 1.3) for what in ("decode", "mirror", "freshness"))
FRESH, OLD = "fresh", "old"


def main() -> int:
    options = _options()
    changes = options.transactions * CHANGES_PER_TRANSACTION
    with work_directory(options.directory) as directory, running(directory) as server:
        make_tables(server, options.scale)
        logs = [server.init(slot) for slot in (FRESH, OLD)]
        server.age(OLD, options.commits)
        run_transactions(server, options.transactions)
        for log in logs:
            child.pgtide(log, "capture", "--until-current")
        progress("Spark")
        arguments = [*map(str, logs), str(changes), str(options.runs)]
        runs = child.answer(child.start("pipeline_age_jobs", *arguments))
    for age, behind in ((FRESH, 0), (OLD, options.commits)):
        with work_directory(options.directory) as directory:
            figures, _ = freshness.measure(directory, options, behind)
        runs[f"freshness_{age}"] = [figures["p50_s"]]
        progress(f"freshness, {age} log: {figures['p50_s']:.2f} s")
    medians = {name: median(times) for name, times in runs.items()}
    ratios = {
        f"ratio_{what}": medians[f"{what}_{OLD}"] / medians[f"{what}_{FRESH}"]
        for what in ("decode", "mirror", "freshness")
    }
    figures = ratios | {f"{name}_s": seconds for name, seconds in medians.items()}
    return finish("pipeline_age", figures, BARS, runs, changes=changes, commits=options.commits)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=50_000, help="behind the old log")
    parser.add_argument("--transactions", type=int, default=160_000)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    freshness.add_options(parser)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
