"""From commit to visible in a replica: 500 small transactions a second, ``pgtide run`` as it is.

Each transaction inserts a row with the server's time and updates another one. Somebody looks at
the target fifty times a second; a row's lag is from its own time to the look that finds it. The
first seconds, in which Spark starts and Java compiles, are left out. No limit beside it: native
replication has no batches to wait for, and shows a row within milliseconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.replica import second_server
from benchmarks.report import Bar, finish, percentile, progress
from benchmarks.server import Server, running, work_directory

BARS = (Bar("p50_s", "<=", 1.5),)
SLOT = "lag"
LOOK_S = 0.02
TABLES = (
    "CREATE TABLE ticks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz)",
    "CREATE TABLE things (id int PRIMARY KEY, n int)",
    "INSERT INTO things SELECT n, 0 FROM generate_series(1, 100000) n",
)
SCRIPT = """\\set id random(1, 100000)
BEGIN;
UPDATE things SET n = n + 1 WHERE id = :id;
INSERT INTO ticks (at) VALUES (clock_timestamp());
END;
"""


def main() -> int:
    options = _options()
    with (
        work_directory(options.directory) as directory,
        running(directory) as source,
        second_server(directory) as target,
    ):
        for server in (source, target):
            with server.connect() as connection:
                for statement in TABLES:
                    connection.execute(statement.encode())
        sink = {"type": "postgres", "url": target.postgres.url()}
        config = source.init(SLOT, pipelines={"replica": {"sink": sink}})
        script = directory / "script.sql"
        script.write_text(SCRIPT)
        lags, used = _measure(source, target, config, script, options)
    figures = {
        "p50_s": percentile(lags, 50),
        "p99_s": percentile(lags, 99),
        "cpu_cores": used / options.seconds,
        "rows": float(len(lags)),
    }
    return finish("replica_lag", figures, BARS, {"rows": len(lags)}, rate=options.rate)


def _measure(
    source: Server, target: Server, config: Path, script: Path, options: argparse.Namespace
) -> tuple[list[float], float]:
    run = subprocess.Popen(
        [child.PGTIDE, "-c", config, "--log-level", "warning", "run"],
        env=child.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    seconds = options.warm + options.seconds
    load = subprocess.Popen(
        source.tool(
            "pgbench",
            "-n",
            "-f",
            str(script),
            "-c",
            "4",
            "-j",
            "2",
            "-R",
            str(options.rate),
            "-T",
            str(seconds),
            "postgres",
        ),
        env=child.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        progress(f"{options.rate} transactions a second, {options.warm} s to warm up")
        lags = _looks(target, time.time() + options.warm, time.time() + seconds, run)
        used = _cpu(run) * options.seconds / seconds
        progress(f"{len(lags)} rows")
    finally:
        load.wait()
        run.send_signal(signal.SIGTERM)
        run.wait()
    return lags, used


def _looks(target: Server, first: float, last: float, run: subprocess.Popen[Any]) -> list[float]:
    """The lag of every row that was made between two times."""
    lags: list[float] = []
    seen = 0
    query = (
        "SELECT id, extract(epoch FROM at)::float8, extract(epoch FROM clock_timestamp())::float8"
        " FROM ticks WHERE id > %s ORDER BY id"
    )
    with target.connect() as connection:
        while (now := time.time()) < last and run.poll() is None:
            for id_, made, looked in connection.execute(query, [seen]).fetchall():
                seen = max(seen, id_)
                if made >= first:
                    lags.append(looked - made)
            time.sleep(max(0.0, LOOK_S - (time.time() - now)))
    if run.poll() is not None:
        raise SystemExit("pgtide run has ended")
    return lags


def _cpu(run: subprocess.Popen[Any]) -> float:
    """CPU seconds of the process and all of its children so far."""
    pids, found = [run.pid], 0.0
    while pids:
        pid = pids.pop()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm", type=int, default=90, help="seconds that do not count")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
