"""Time to drain a slot into a durable log, against ``pg_recvlogical -f /dev/null``.

pgbench makes 160 000 transactions of four changes while slots wait. The slots are then
drained one by one, pg_recvlogical and pgtide in turn: on a unix socket, on TCP, and with
pgtide kept in the live gear. Every log is checked: all rows, the same in both gears.

A drain by pgtide is timed inside its own process, see ``drain``; from a drain by
pg_recvlogical the time of an empty one is subtracted, which is its process start. One small
drain in each gear goes before, so that compiled code is in the cache, as on any second start.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import child
from benchmarks.contents import check
from benchmarks.pgbench import (
    CHANGES_PER_TRANSACTION,
    CLIENTS,
    make_tables,
    pgbench,
    run_transactions,
)
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import Server, running, work_directory

EMPTY_DRAINS = 3

BARS = (
    Bar("ratio", ">=", 1.3),
    Bar("ratio_tcp", ">=", 2.5),
    Bar("ratio_live", ">=", 0.75),
    Bar("cpu_s", "<=", 2.0),
    Bar("peak_rss_mb", "<=", 500.0),
)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to drain, for both sides."""

    name: str
    tcp: bool = False
    gear: str = "auto"


MODES = (Mode("unix"), Mode("tcp", tcp=True), Mode("live", gear="live"))

Runs = dict[str, dict[str, list[dict[str, float]]]]


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory, running(directory) as server:
        configs = _prepare(server, options)
        end = run_transactions(server, options.transactions)
        idle = _empty_drains(server, end)
        runs = _drain_all(server, configs, options, end, idle)
    return finish(
        "capture",
        _figures(runs),
        BARS,
        runs,
        transactions=options.transactions,
        changes=options.transactions * CHANGES_PER_TRANSACTION,
        empty_drain_s=idle,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=160_000)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5, help="per mode and side")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    options = parser.parse_args()
    if options.transactions % CLIENTS:
        parser.error(f"--transactions must be a multiple of {CLIENTS}")
    return options


def _prepare(server: Server, options: argparse.Namespace) -> dict[str, Path]:
    """Tables, warm caches, and all slots; the configuration files by slot."""
    make_tables(server, options.scale)
    _warm_up(server)
    progress(f"{2 * options.runs * len(MODES)} slots")
    configs = {}
    for mode in MODES:
        for run in range(options.runs):
            slot = f"pgtide_{mode.name}_{run}"
            configs[slot] = server.init(slot, tcp=mode.tcp)
            with server.connect() as conn:
                conn.execute(
                    "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')",
                    [f"limit_{mode.name}_{run}"],
                )
    return configs


def _warm_up(server: Server) -> None:
    progress("warming up")
    config = server.init("warm")
    for gear in ("live", "auto"):
        pgbench(server, "-n", "-t", "100")
        child.answer(child.start("drain", str(config), gear, "0/0"))
    _drop_slot(server, "warm")


def _empty_drains(server: Server, end: str) -> dict[str, float]:
    """What pg_recvlogical takes when there is nothing to drain, by transport."""
    with server.connect() as conn:
        conn.execute("SELECT pg_create_logical_replication_slot('empty', 'pgoutput')")
    idle = {
        name: median([_limit(server, "empty", end, tcp).seconds for _ in range(EMPTY_DRAINS)])
        for name, tcp in (("unix", False), ("tcp", True))
    }
    _drop_slot(server, "empty")
    progress(f"pg_recvlogical, nothing to drain: {idle['unix']:.3f} s, TCP {idle['tcp']:.3f} s")
    return idle


def _drain_all(
    server: Server,
    configs: dict[str, Path],
    options: argparse.Namespace,
    end: str,
    idle: dict[str, float],
) -> Runs:
    runs: Runs = {mode.name: {"limit": [], "pgtide": []} for mode in MODES}
    rows = options.transactions * CHANGES_PER_TRANSACTION
    reference: pa.Table | None = None
    for run in range(options.runs):
        for mode in MODES:
            slot = f"limit_{mode.name}_{run}"
            limit = _limit(server, slot, end, mode.tcp)
            seconds = limit.seconds - idle["tcp" if mode.tcp else "unix"]
            runs[mode.name]["limit"].append({"seconds": seconds, "cpu_s": limit.cpu_s})
            _drop_slot(server, slot)
            slot = f"pgtide_{mode.name}_{run}"
            ours = child.answer(child.start("drain", str(configs[slot]), mode.gear, end))
            runs[mode.name]["pgtide"].append(ours)
            _drop_slot(server, slot)
            reference = check(server.directory / slot, rows, reference)
            shutil.rmtree(server.directory / slot)
            progress(_line(run, mode, seconds, ours))
    return runs


def _limit(server: Server, slot: str, end: str, tcp: bool) -> child.Finished:
    options = {"proto_version": "1", "publication_names": "warm", "messages": "true"}
    plugin = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return child.timed(
        server.tool(
            *("pg_recvlogical", "--start", "--no-loop", "-S", slot, "-d", "postgres"),
            *("-f", "/dev/null", "--endpos", end, *plugin),
            tcp=tcp,
        )
    )


def _drop_slot(server: Server, slot: str) -> None:
    with server.connect() as conn:
        conn.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def _line(run: int, mode: Mode, limit: float, ours: dict[str, Any]) -> str:
    return (
        f"run {run + 1} {mode.name:4}  pg_recvlogical {limit:.3f} s  pgtide {ours['seconds']:.3f} s"
        f"  ratio {limit / ours['seconds']:.2f}  CPU {ours['cpu_s']:.2f} s"
        f"  {ours['peak_rss_mb']:.0f} MB"
    )


def _figures(runs: Runs) -> dict[str, float]:
    def of(mode: str, side: str, figure: str = "seconds") -> float:
        return median([run[figure] for run in runs[mode][side]])

    return {
        "ratio": of("unix", "limit") / of("unix", "pgtide"),
        "ratio_tcp": of("tcp", "limit") / of("tcp", "pgtide"),
        "ratio_live": of("live", "limit") / of("live", "pgtide"),
        "limit_s": of("unix", "limit"),
        "limit_s_tcp": of("tcp", "limit"),
        "pgtide_s": of("unix", "pgtide"),
        "pgtide_s_tcp": of("tcp", "pgtide"),
        "pgtide_s_live": of("live", "pgtide"),
        "cpu_s": of("unix", "pgtide", "cpu_s"),
        "cpu_s_tcp": of("tcp", "pgtide", "cpu_s"),
        "cpu_s_live": of("live", "pgtide", "cpu_s"),
        "peak_rss_mb": max(run["peak_rss_mb"] for side in runs.values() for run in side["pgtide"]),
    }


if __name__ == "__main__":
    sys.exit(main())
