"""A child of ``capture_latency``: follow a log and note when each row can be read.

A row's latency is the clock when a follower has it, minus ``committed_at``, which the server
takes just before it writes the commit record: its own fsync is part of what is measured.
The follower's own share is the clock minus the modification time of the commit's file; that
time comes from the kernel's coarse clock, exact to a few milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.capturing import newest_version
from benchmarks.report import cpu_seconds, percentile
from pgtide import Log
from pgtide.config import TablePatterns
from pgtide.log.schema import CHANGES
from pgtide.log.table import commit_path

PATIENCE_S = 15.0  # without any row


def main(path: str, table: str, expected: str) -> None:
    log = Log(path)
    start = log.end
    version = newest_version(Path(path))
    heard = time.monotonic() + PATIENCE_S  # the load has yet to begin
    latencies: list[float] = []
    own: list[float] = []

    def over() -> bool:
        return len(latencies) >= int(expected) or time.monotonic() - heard > PATIENCE_S

    print("ready", flush=True)
    for batch in log.batches(start, tables=TablePatterns([table]), follow=True, stop=over):
        now_ns = time.time_ns()
        heard = time.monotonic()
        committed_us = batch.column("committed_at").cast(pa.int64()).to_numpy()
        latencies += ((now_ns - committed_us.astype(np.int64) * 1000) / 1e9).tolist()
        while (commit := Path(path) / CHANGES / commit_path(version + 1)).exists():
            version += 1
            written_ns = commit.stat().st_mtime_ns
        own.append((now_ns - written_ns) / 1e9)
    if len(latencies) != int(expected):
        raise SystemExit(f"{len(latencies)} rows reached the follower, {expected} were committed")
    print(
        json.dumps(
            {
                "rows": len(latencies),
                "commits": len(own),
                **{f"p{p}_s": percentile(latencies, p) for p in (50, 90, 99, 100)},
                "follower_p50_s": percentile(own, 50),
                "follower_p99_s": percentile(own, 99),
                "follower_cpu_s": cpu_seconds(),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
