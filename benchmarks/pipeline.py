"""A backlog through Spark: decoded only, and into mirrors, against a hand-written Spark job.

The log holds 160 000 pgbench transactions: 640 000 changes of four tables. The limit reads the
same Parquet files with bare casts, keeps the last row of each key by hand, and writes Delta
tables. All in one JVM that has done the same before, in turn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import child
from benchmarks.pgbench import (
    CHANGES_PER_TRANSACTION,
    CLIENTS,
    make_tables,
    pgbench,
    run_transactions,
)
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import running, work_directory

BARS = (Bar("ratio", ">=", 0.6), Bar("decode_per_s", ">=", 600_000))
WARM_UP = "warm"
LOADED = "loaded"


def main() -> int:
    options = _options()
    changes = options.transactions * CHANGES_PER_TRANSACTION
    with work_directory(options.directory) as directory, running(directory) as server:
        make_tables(server, options.scale)
        warm = server.init(WARM_UP)
        pgbench(server, "-n", "-t", "500")
        child.pgtide(warm, "capture", "--until-current")
        loaded = server.init(LOADED)
        run_transactions(server, options.transactions)
        child.pgtide(loaded, "capture", "--until-current")
        progress("Spark")
        runs = child.answer(
            child.start("pipeline_jobs", str(warm), str(loaded), str(changes), str(options.runs))
        )
    ours, limit = median(runs["pgtide"]), median(runs["limit"])
    figures = {
        "ratio": limit / ours,
        "decode_per_s": changes / median(runs["decode"]),
        "mirror_per_s": changes / ours,
        "limit_s": limit,
        "pgtide_s": ours,
        "decode_s": median(runs["decode"]),
        "decode_query_s": median(runs["query"]),  # writing the query down, which is no decoding
        "cpu_s": runs["cpu_s"],
        "peak_rss_mb": runs["peak_rss_mb"],
    }
    return finish("pipeline", figures, BARS, runs, changes=changes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=160_000)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    options = parser.parse_args()
    if options.transactions % CLIENTS:
        parser.error(f"--transactions must be a multiple of {CLIENTS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
