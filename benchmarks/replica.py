"""A replica that catches up with a backlog, against Postgres's own logical replication.

160 000 pgbench transactions wait in a slot for each run of each side. The limit is a subscription
that is enabled, until the last transaction is visible at its target; pgtide captures and applies,
until it has said that it is done. Both write into databases of one second server that begin
equal to the source, in turn. Starting Java and warming it up are left out: a session that has
done the same before runs all of pgtide's sides, and how long the first of its rounds took is told
beside it. Every target is compared with the source.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import child
from benchmarks.pgbench import (
    CHANGES_PER_TRANSACTION,
    CLIENTS,
    make_tables,
    run_transactions,
)
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import SETTINGS, Server, running, work_directory
from pgtide.postgres.embedded import EmbeddedPostgres

BARS = (Bar("ratio", ">=", 0.8),)
POLL_S = 0.02
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
MARKER = "CREATE TABLE finished (id int PRIMARY KEY)"
WARM_RUNS = 8  # Java is still compiling in the sixth


def main() -> int:
    options = _options()
    with (
        work_directory(options.directory) as directory,
        running(directory) as source,
        second_server(directory) as target,
    ):
        for server in (source, target):
            make_tables(server, options.scale)
            with server.connect() as connection:
                connection.execute(MARKER)
        warm = [begin(source, target, f"warm{n}") for n in range(WARM_RUNS)]
        runs = [begin(source, target, f"run{n}") for n in range(options.runs)]
        natives = [begin_native(source, target, f"native{n}") for n in range(options.runs)]
        run_transactions(source, options.transactions)
        with source.connect() as connection:
            connection.execute("INSERT INTO finished VALUES (1)")
        figures = _run(source, target, warm + runs, natives, options.runs)
    ours, limit = median(figures["pgtide"]), median(figures["limit"])
    changes = options.transactions * CHANGES_PER_TRANSACTION
    report = {
        "ratio": limit / ours,
        "limit_s": limit,
        "pgtide_s": ours,
        "capture_s": median(figures["capture"]),
        "apply_s": median(figures["apply"]),
        "cold_s": figures["cold"],
        "changes_per_s": changes / ours,
        "cpu_s": figures["cpu_s"],
        "peak_rss_mb": figures["peak_rss_mb"],
    }
    return finish("replica", report, BARS, figures, changes=changes)


@contextmanager
def second_server(directory: Path) -> Iterator[Server]:
    """The targets' server."""
    with EmbeddedPostgres(directory / "target", settings=SETTINGS) as postgres:
        yield Server(postgres, directory)


def begin(source: Server, target: Server, name: str) -> Path:
    """A slot, a log and a target for one run of pgtide; the configuration file."""
    url = copy_of_target(target, name)
    sink = {"type": "postgres", "url": url}
    return source.init(name, pipelines={"replica": {"sink": sink}})


def begin_native(source: Server, target: Server, name: str) -> str:
    """A slot and a target with a subscription that is not enabled yet; the target."""
    url = copy_of_target(target, name)
    with source.connect() as connection:
        found = connection.execute("SELECT FROM pg_publication WHERE pubname = 'native'").fetchone()
        if found is None:
            connection.execute("CREATE PUBLICATION native FOR TABLES IN SCHEMA public")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{source.postgres.url()}' PUBLICATION native"
            f" WITH (enabled = false, create_slot = false, copy_data = false, slot_name = {name})"
        )
    return url


def copy_of_target(target: Server, name: str) -> str:
    with target.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE postgres")
    return target.postgres.url(dbname=name)


def _run(
    source: Server, target: Server, configs: list[Path], natives: list[str], runs: int
) -> dict[str, Any]:
    """Both sides in turn: the child waits for a line before each of its own."""
    process = child.start("replica_jobs", str(runs), *map(str, configs), answered=True)
    limit = []
    assert process.stdin is not None
    for native in natives:
        child.expect(process, "ready")
        limit.append(_native(native))
        progress(f"native {limit[-1]:.2f} s")
        process.stdin.write("go\n")
        process.stdin.flush()
    figures = child.answer(process)
    figures["limit"] = limit
    wanted = contents(source.postgres.url(), TABLES)
    for name in [*(f"run{n}" for n in range(runs)), *(f"native{n}" for n in range(runs))]:
        if contents(target.postgres.url(dbname=name), TABLES) != wanted:
            raise SystemExit(f"{name} is not equal to the source")
    return figures


def _native(url: str) -> float:
    name = url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(url, autocommit=True) as connection:
        began = time.perf_counter()
        connection.execute(f"ALTER SUBSCRIPTION {name} ENABLE".encode())
        while connection.execute("SELECT FROM finished").fetchone() is None:
            time.sleep(POLL_S)
        seconds = time.perf_counter() - began
        connection.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
        return seconds


def contents(url: str, tables: Sequence[str]) -> list[Any]:
    """What is the same of two databases whose tables have the same rows."""
    with psycopg.connect(url) as connection:
        query = "SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {} t"
        return [connection.execute(query.format(table).encode()).fetchone() for table in tables]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=160_000)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    options = parser.parse_args()
    if options.transactions % CLIENTS:
        parser.error(f"--transactions must be a multiple of {CLIENTS}")
    return options


if __name__ == "__main__":
    sys.exit(main())
