"""A child of ``capture``: drain one slot into its log and say what it took.

Imports and the configuration come before the clock starts; connecting, the checks at the
start, loading compiled code from the cache on disk and the last fsync are part of the time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.report import cpu_seconds, peak_rss_mb
from pgtide.capture.engine import Capture
from pgtide.config import load
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn


def main(file: str, gear: str, end: str) -> None:
    config = load(Path(file), {})
    capture = Capture(config)
    before, began = cpu_seconds(), time.perf_counter()
    capture.run(until_current=True, gear=None if gear == "auto" else gear)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - before
    reached = LogWriter(config.log.path, config.log.storage, config.source.slot).position
    if reached < Lsn.parse(end):
        raise SystemExit(f"the log is at {reached}, it should be at {end}")
    print(json.dumps({"seconds": seconds, "cpu_s": cpu, "peak_rss_mb": peak_rss_mb()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
