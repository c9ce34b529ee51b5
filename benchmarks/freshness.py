"""From COMMIT to queryable in the lake: small transactions into mirrors of a million rows.

100 transactions a second update one row each, in one of three tables, for 60 s, while ``pgtide
run`` keeps their mirrors. Every row is updated at most once and holds the time of its update,
so afterwards the mirror's versions tell how old each change was when it became visible: when the
Delta commit that holds it appeared. Capture's own share is part of it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks import child
from benchmarks.processes import descendants
from benchmarks.report import Bar, finish, percentile, progress
from benchmarks.server import Server, running, work_directory

BARS = (Bar("p50_s", "<=", 6.0),)
TABLES = ("red", "green", "blue")
PATIENCE_S = 600.0
POLL_S = 2.0
SCHEMA = """
CREATE TABLE {0} (id bigint PRIMARY KEY, owner int, amount numeric(12,2), note text,
                  changed_at timestamptz);
"""
FILL = """
INSERT INTO {0} SELECT n, n % 1000, n * 0.01, md5(n::text), NULL FROM generate_series(1, {1}) n;
"""
CHANGE = "UPDATE {} SET amount = amount + 1, changed_at = clock_timestamp() WHERE id = %s"


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory:
        figures, runs = measure(directory, options)
    return finish("freshness", figures, BARS, runs, rows=options.rows, seconds=options.seconds)


def measure(
    directory: Path, options: argparse.Namespace, commits_behind: int = 0
) -> tuple[dict[str, float], dict[str, Any]]:
    """Mirrors kept by ``pgtide run``, from a log that has so many commits behind it."""
    _USED.clear()
    with running(directory) as server:
        config, lake = _prepare(server, directory, options.rows, commits_behind)
        run = subprocess.Popen(
            [child.PGTIDE, "-c", config, "run"], env=child.environment(), start_new_session=True
        )
        try:
            return _measure(server, lake, run, options)
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table")
    parser.add_argument("--rate", type=int, default=100, help="transactions a second")
    parser.add_argument("--seconds", type=int, default=60)


def _prepare(server: Server, directory: Path, rows: int, commits_behind: int) -> tuple[Path, Path]:
    lake = directory / "lake"
    config = server.configure("pgtide")
    settings = json.loads(config.read_text())
    tables = [f"public.{table}" for table in TABLES]
    settings["pipelines"] = {
        "lake": {"tables": tables, "sink": {"type": "delta", "path": str(lake)}}
    }
    config.write_text(json.dumps(settings))
    child.pgtide(config, "init")
    if commits_behind:
        server.age("pgtide", commits_behind)
    progress(f"{len(TABLES)} tables of {rows} rows")
    with server.connect() as connection:
        for table in TABLES:
            connection.execute(SCHEMA.format(table).encode())
            connection.execute(FILL.format(table, rows).encode())
    child.pgtide(config, "capture", "--until-current")
    return config, lake


def _measure(
    server: Server, lake: Path, run: subprocess.Popen[bytes], options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, Any]]:
    mirrors = [Mirror(lake / "public" / table) for table in TABLES]
    progress("waiting for the mirrors to fill")
    _until(lambda: all(m.rows() == options.rows for m in mirrors), run)
    warm = _business(server, options, seconds=10)  # the first merges are not part of it
    _until(lambda: sum(m.changed() for m in mirrors) == warm, run)
    since = [mirror.version() for mirror in mirrors]
    progress(f"{options.rate} transactions a second for {options.seconds} s")
    before, began = _cpu_seconds(run.pid), time.monotonic()
    sent = _business(server, options, seconds=options.seconds)
    cpu = (_cpu_seconds(run.pid) - before) / (time.monotonic() - began)
    _until(lambda: sum(m.changed() for m in mirrors) == warm + sent, run)
    commits = sum(mirror.version() for mirror in mirrors) - sum(since)
    latencies = [x for mirror, v in zip(mirrors, since, strict=True) for x in mirror.latencies(v)]
    if len(latencies) != sent:
        raise SystemExit(f"{len(latencies)} changes were seen, not {sent}")
    figures = {
        "p50_s": percentile(latencies, 50),
        "p99_s": percentile(latencies, 99),
        "cpu_cores": cpu,
        "changes": float(sent),
        "commits": float(commits),
    }
    return figures, {"latency_s": sorted(round(x, 3) for x in latencies)[:: len(latencies) // 100]}


def _business(server: Server, options: argparse.Namespace, *, seconds: int) -> int:
    """Update rows at a steady rate, each at most once; how many."""
    ids = [(table, number) for table in TABLES for number in _chosen(options)]
    _USED.update(ids)
    random.shuffle(ids)
    count = options.rate * seconds
    with server.connect() as connection:
        began = time.monotonic()
        for index, (table, number) in enumerate(ids[:count]):
            time.sleep(max(0.0, began + index / options.rate - time.monotonic()))
            connection.execute(CHANGE.format(table).encode(), [number])
    return count


_USED: set[tuple[str, int]] = set()


def _chosen(options: argparse.Namespace) -> list[int]:
    """Rows that no change has touched yet."""
    used = {number for _, number in _USED}
    count = options.rate * options.seconds
    free = random.sample(range(1, options.rows + 1), count + len(used))
    return [number for number in free if number not in used][:count]


class Mirror:
    """A mirror as somebody who queries it sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self) -> int:
        if not (self._path / "_delta_log").is_dir():
            return 0
        return int(self._ask("SELECT count(*) AS n FROM t")["n"][0])

    def changed(self) -> int:
        return int(self._ask("SELECT count(changed_at) AS n FROM t")["n"][0])

    def version(self) -> int:
        return DeltaTable(str(self._path)).version()

    def latencies(self, since: int) -> list[float]:
        """Of every change that came with a version after this one; looked up afterwards."""
        seen, found = self._newest(since), []
        for version in range(since + 1, self.version() + 1):
            commit = self._path / "_delta_log" / f"{version:020d}.json"
            visible_at, newest = commit.stat().st_mtime, self._newest(version)
            query = "SELECT arrow_cast(changed_at, 'Int64') AS us FROM t"
            changes = self._ask(f"{query} WHERE arrow_cast(changed_at, 'Int64') > {seen}", version)
            found += [visible_at - us / 1e6 for us in changes["us"]]
            seen = newest
        return found

    def _newest(self, version: int) -> int:
        answer = self._ask("SELECT max(arrow_cast(changed_at, 'Int64')) AS us FROM t", version)
        return answer["us"][0] or 0

    def _ask(self, query: str, version: int | None = None) -> dict[str, list[Any]]:
        table = DeltaTable(str(self._path), version=version)
        answer = QueryBuilder().register("t", table).execute(query).read_all()
        columns: dict[str, list[Any]] = pa.table(answer).to_pydict()
        return columns


def _until(condition: Any, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if run.poll() is not None:
            raise SystemExit(f"pgtide run ended with exit code {run.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit("the mirrors did not get there")
        time.sleep(POLL_S)


def _cpu_seconds(run: int) -> float:
    """CPU time of run, capture and Java."""
    return sum(process.cpu_s for process in descendants(run))


if __name__ == "__main__":
    sys.exit(main())
