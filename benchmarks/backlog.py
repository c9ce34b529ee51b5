"""Ten million changes that wait in a log, worked off by ``pgtide run`` within 4 GB.

Half of the changes insert rows of two tables, the other half update them, in transactions of
50 000 rows. Capture has written them before. Memory is the sum over all processes of the run,
Spark's included, of the most that each has had in memory; the mirrors are compared with the source.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks import child
from benchmarks.processes import descendants
from benchmarks.report import Bar, finish, progress
from benchmarks.server import Server, running, work_directory

BARS = (Bar("peak_rss_mb", "<=", 4096.0),)
TABLES = ("orders", "payments")
ROWS_PER_TRANSACTION = 50_000
SAMPLE_S = 0.5
SCHEMA = """
CREATE TABLE {0} (id bigint PRIMARY KEY, owner int, amount numeric(12,2), note text,
                  placed_at timestamptz);
"""
INSERT = """
INSERT INTO {0} SELECT n, n % 1000, n * 0.01, md5(n::text), now()
FROM generate_series({1}, {2}) n;
"""
UPDATE = "UPDATE {0} SET amount = amount + 1, owner = owner + 1 WHERE id BETWEEN {1} AND {2};"
PROOF = "SELECT count(*) AS n, CAST(sum(amount) AS text) AS s, max(owner) AS o FROM {}"


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory, running(directory) as server:
        config, lake = _prepare(server, directory, options.changes)
        progress("pgtide run --until-current")
        began = time.monotonic()
        run = subprocess.Popen(
            [child.PGTIDE, "-c", config, "run", "--until-current"],
            env=child.environment(),
            start_new_session=True,
        )
        peaks = _watch(run)
        seconds = time.monotonic() - began
        if run.returncode:
            raise SystemExit(f"pgtide run ended with exit code {run.returncode}")
        _compare(server, lake)
    figures = {
        "peak_rss_mb": sum(peaks.values()),
        "seconds": seconds,
        "changes_per_s": options.changes / seconds,
    }
    return finish("backlog", figures, BARS, peaks, changes=options.changes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def _prepare(server: Server, directory: Path, changes: int) -> tuple[Path, Path]:
    lake = directory / "lake"
    config = server.configure("pgtide")
    settings = json.loads(config.read_text())
    settings["pipelines"] = {"lake": {"sink": {"type": "delta", "path": str(lake)}}}
    config.write_text(json.dumps(settings))
    child.pgtide(config, "init")
    rows = changes // 2 // len(TABLES)
    progress(f"{len(TABLES)} tables: {rows} rows inserted and updated in each")
    with server.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        for table in TABLES:
            connection.execute(SCHEMA.format(table).encode())
        for statement in (INSERT, UPDATE):
            for first in range(1, rows + 1, ROWS_PER_TRANSACTION):
                last = min(rows, first + ROWS_PER_TRANSACTION - 1)
                for table in TABLES:
                    connection.execute(statement.format(table, first, last).encode())
    progress("capture")
    child.pgtide(config, "capture", "--until-current")
    return config, lake


def _watch(run: subprocess.Popen[bytes]) -> dict[str, float]:
    """The most memory that each process of the run has had, in MB."""
    peaks: dict[str, float] = {}
    while run.poll() is None:
        for process in descendants(run.pid):
            peaks[process.name] = max(peaks.get(process.name, 0.0), process.peak_mb)
        time.sleep(SAMPLE_S)
    return peaks


def _compare(server: Server, lake: Path) -> None:
    for table in TABLES:
        with server.connect() as connection:
            expected = connection.execute(PROOF.format(table).encode()).fetchone()
        found = _ask(lake / "public" / table, PROOF.format("t"))
        if found != expected:
            raise SystemExit(f"{table}: the mirror has {found}, the source {expected}")


def _ask(path: Path, query: str) -> tuple[Any, ...]:
    answer = QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all()
    (row,) = pa.table(answer).to_pylist()
    return tuple(row.values())


if __name__ == "__main__":
    sys.exit(main())
