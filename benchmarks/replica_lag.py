"""From commit to visible in a replica: 500 small transactions a second, ``pgtide run`` as it is.

Each transaction inserts a row with the server's time and updates another one. Somebody looks at
the target fifty times a second; a row's lag is from its own time to the look that finds it. The
first seconds, in which Spark starts and Java compiles, are left out. Before it the same through a
native subscription, which has no batches to wait for. CPU time is that of pgtide and of all
sessions that serve it at both servers, or of the native sender and worker.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import child
from benchmarks.processes import descendants
from benchmarks.replica import begin_native, copy_of_target, second_server
from benchmarks.report import Bar, finish, percentile, progress
from benchmarks.server import Server, running, work_directory

BARS = (Bar("p50_s", "<=", 1.5),)
NATIVE, SLOT = "native_lag", "lag"
NATIVE_WARM_S = 10
LOOK_S = 0.02
LATE_S = 10  # for which transactions go on behind those that count
MOST_S = 60.0  # that a row may take
LEAST_OF_RATE = 0.97  # a paced pgbench stays a little below its rate
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


@dataclass(frozen=True)
class Measured:
    """The lags of rows, and the CPU seconds that it took to bring them, per second."""

    lags: list[float]
    cores: float


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
        script = directory / "script.sql"
        script.write_text(SCRIPT)
        native = begin_native(source, target, NATIVE)
        with _subscribed(native):
            limit = _measure(source, native, script, options, NATIVE_WARM_S, lambda: 0.0)
        url = copy_of_target(target, SLOT)
        sink = {"type": "postgres", "url": url}
        config = source.init(SLOT, pipelines={"replica": {"sink": sink}})
        with _pgtide(config) as run:
            ours = _measure(
                source, url, script, options, options.warm, lambda: _alive(run) and _cpu(run)
            )
    figures = {
        "p50_s": percentile(ours.lags, 50),
        "p99_s": percentile(ours.lags, 99),
        "cpu_cores": ours.cores,
        "rows": float(len(ours.lags)),
        "native_p50_s": percentile(limit.lags, 50),
        "native_p99_s": percentile(limit.lags, 99),
        "native_cpu_cores": limit.cores,
    }
    runs = {"rows": len(ours.lags), "native_rows": len(limit.lags)}
    return finish("replica_lag", figures, BARS, runs, rate=options.rate)


@contextmanager
def _subscribed(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER SUBSCRIPTION {NATIVE} ENABLE".encode())
        yield
        connection.execute(f"DROP SUBSCRIPTION {NATIVE}".encode())


@contextmanager
def _pgtide(config: Path) -> Iterator[subprocess.Popen[Any]]:
    run = subprocess.Popen(
        [child.PGTIDE, "-c", config, "--log-level", "warning", "run"],
        env=child.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield run
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait()


def _alive(run: subprocess.Popen[Any]) -> bool:
    if run.poll() is not None:
        raise SystemExit("pgtide run has ended")
    return True


def _cpu(run: subprocess.Popen[Any]) -> float:
    """CPU seconds of the process and all of its children so far."""
    return sum(process.cpu_s for process in descendants(run.pid))


def _measure(
    source: Server,
    target: str,
    script: Path,
    options: argparse.Namespace,
    warm: int,
    used: Callable[[], float],
) -> Measured:
    """Write for a while and look at the target; ``used``: CPU seconds outside of both servers."""
    seconds = warm + options.seconds + LATE_S
    rates = ["-c", "4", "-j", "2", "-R", str(options.rate), "-T", str(seconds)]
    load = subprocess.Popen(
        source.tool("pgbench", "-n", "-f", str(script), *rates, "postgres"),
        env=child.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        progress(f"{options.rate} transactions a second, {warm} s to warm up")
        first = time.time() + warm
        with source.connect() as here, psycopg.connect(target, autocommit=True) as there:
            time.sleep(warm)
            sessions, outside, began = _sessions(here, there), used(), time.time()
            lags = _looks(there, first, first + options.seconds)
            spent, seconds = used() - outside, time.time() - began
            for pid, before in sessions.items():
                spent += sum(process.cpu_s - before for process in descendants(pid))
        progress(f"{len(lags)} rows")
        if len(lags) < LEAST_OF_RATE * options.rate * options.seconds:
            raise SystemExit("so many transactions were not made: the machine is too slow")
    finally:
        load.wait()
    return Measured(lags, spent / seconds)


def _sessions(*servers: psycopg.Connection[Any]) -> dict[int, float]:
    """CPU seconds so far of sessions that bring changes from one server to the other, by pid."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgtide%'"
        " OR backend_type IN ('walsender', 'logical replication worker',"
        " 'logical replication apply worker')"
    )
    pids = [pid for server in servers for (pid,) in server.execute(query).fetchall()]
    return {pid: sum(process.cpu_s for process in descendants(pid)) for pid in pids}


def _looks(connection: psycopg.Connection[Any], first: float, last: float) -> list[float]:
    """The lag of every row that was made between two times.

    Looks until a row comes that was made later: those that take long count as well.
    """
    lags: list[float] = []
    newest = connection.execute("SELECT coalesce(max(id), 0) FROM ticks").fetchone()
    assert newest is not None
    seen, latest = newest[0], 0.0
    query = (
        "SELECT id, extract(epoch FROM at)::float8, extract(epoch FROM clock_timestamp())::float8"
        " FROM ticks WHERE id > %s ORDER BY id"
    )
    while latest < last:
        now = time.time()
        if now > last + MOST_S:
            raise SystemExit(f"no row has come to the target for {MOST_S} s")
        for id_, made, looked in connection.execute(query, [seen]).fetchall():
            seen, latest = max(seen, id_), max(latest, made)
            if first <= made < last:
                lags.append(looked - made)
        time.sleep(max(0.0, LOOK_S - (time.time() - now)))
    return lags


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--warm", type=int, default=90, help="seconds that do not count")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
