"""Verifying a mirror of five million rows, against one aggregate over the table in Postgres.

The limit is ``SELECT count(*), sum(hashtext(t::text)) FROM t``, with whatever parallel workers
the server gives it. Both take turns, in one Spark session that has verified the table before:
starting a session and Java's warming up are left out. All of a verification counts otherwise:
waiting until the mirror has what the source has, both sides' checksums, the comparison.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import child
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import Server, running, work_directory

BARS = (Bar("ratio", "<=", 3),)
SLOT = "verified"
PORTION = 250_000  # rows of a transaction

TABLE = """
CREATE TABLE t (id bigint PRIMARY KEY, n int, price numeric(12,2), name text, at timestamptz,
    ok bool, uid uuid, f float8)
"""
ROWS = """
INSERT INTO t SELECT n, n %% 1000, (n %% 1000000) / 7.0, 'name of row ' || n,
    '2024-01-01 00:00:00+00'::timestamptz + n * interval '1.5 s', n %% 3 = 0,
    md5(n::text)::uuid, n / 3.0
FROM generate_series(%s::bigint, %s::bigint) n
"""


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory, running(directory) as server:
        config = _fill(server, options.rows)
        progress("Spark")
        runs = child.answer(
            child.start("verify_jobs", str(config), str(options.rows), str(options.runs))
        )
    ours, limit = median(runs["pgtide"]), median(runs["limit"])
    figures = {
        "ratio": ours / limit,
        "limit_s": limit,
        "pgtide_s": ours,
        "rows_per_s": options.rows / ours,
        "cold_s": runs["cold_s"],
        "cpu_s": runs["cpu_s"],
        "peak_rss_mb": runs["peak_rss_mb"],
    }
    return finish("verify", figures, BARS, runs, rows=options.rows)


def _fill(server: Server, rows: int) -> Path:
    """The table, its rows in the log; the configuration file."""
    with server.connect() as connection:
        connection.execute(TABLE)
        config = server.init(SLOT)
        progress(f"{rows} rows")
        for first in range(1, rows + 1, PORTION):
            connection.execute(ROWS, [first, min(rows, first + PORTION - 1)])
        connection.execute("VACUUM ANALYZE t")
    child.pgtide(config, "capture", "--until-current")
    return config


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
