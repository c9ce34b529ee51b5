"""pgbench as the load of a benchmark: its tables, and transactions of four changes each."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import child
from benchmarks.report import progress
from benchmarks.server import Server

CLIENTS = 4
CHANGES_PER_TRANSACTION = 4  # of pgbench's standard script


def make_tables(server: Server, scale: int) -> None:
    progress(f"pgbench tables, scale {scale}")
    pgbench(server, "-i", "-q", "-s", str(scale))


def run_transactions(server: Server, transactions: int) -> str:
    """Make the changes; the position that is to be reached."""
    progress(f"{transactions} transactions by {CLIENTS} clients")
    each = str(transactions // CLIENTS)
    pgbench(server, "-n", "-P", "10", "-c", str(CLIENTS), "-j", "2", "-t", each, shown=True)
    with server.connect() as conn:
        conn.execute("CHECKPOINT")
        conn.execute("SELECT pg_logical_emit_message(true, 'benchmark', '')")
        row = conn.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def pgbench(server: Server, *arguments: str, shown: bool = False) -> None:
    # The load is not what is measured: it need not wait for the disk at each commit.
    env = child.environment() | {"PGOPTIONS": "-c synchronous_commit=off"}
    command = server.tool("pgbench", *arguments, "postgres")
    # Its progress and its errors are on stderr, its own report on stdout.
    errors = sys.stdout if shown else subprocess.PIPE
    done = subprocess.run(
        command, env=env, stdout=subprocess.DEVNULL, stderr=errors, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"pgbench failed: {done.stderr or 'see above'}")
