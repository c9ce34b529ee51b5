"""What appending, following and opening cost on a log with 100 000 commits behind it.

The old log is built first (see ``aged_log``), maintenance ran by itself meanwhile. Then old
and fresh log take turns: 200 times, rows are appended durably and a follower that waits for
them reads them; a few times the table gets another shape, and the log is opened with all of
its shapes. Ratios are old / fresh, of medians. ``ratio`` is the worse of append and tail.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import child
from benchmarks.aged_log import ROWS_PER_COMMIT, AgedLog
from benchmarks.report import Bar, cpu_seconds, finish, median, peak_rss_mb, percentile, progress
from benchmarks.server import work_directory
from pgtide import Log
from pgtide.log.schema import CHANGES

TIMES = 200
TURNS = 4  # blocks of appends on either log: a disk that gets slower meets both
WARM_UP = 5  # per turn
SETTLE_S = 75.0
OPENS = 5  # per turn, and changes of shape

BARS = (Bar("ratio_append", "<=", 1.3), Bar("ratio_tail", "<=", 1.3))

Times = dict[str, list[float]]


def main() -> int:
    options = _options()
    with work_directory(options.directory) as directory:
        built = _build(directory / "old", options)
        _settle(options.settle)
        before = cpu_seconds()
        runs = {"old": _empty(), "fresh": _empty()}
        for turn in range(TURNS):
            for age, times in runs.items():
                _measure(directory / age, times)
                progress(f"turn {turn + 1}, {age:5}: {_said(times)}")
        facts = {age: _facts(directory / age) for age in runs}
        figures = _figures(runs) | {
            "cpu_s": cpu_seconds() - before,
            "peak_rss_mb": peak_rss_mb(),
        }
    return finish("log_age", figures, BARS, runs, built=built, logs=facts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument(
        "--interval", type=float, default=0.5, help="seconds from commit to commit, by its clock"
    )
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds after building")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


def _build(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    commits, interval = str(options.commits), str(options.interval)
    progress(f"building a log of {commits} commits, {interval} s apart by its clock, without fsync")
    return child.answer(child.start("aged_log", str(path), commits, interval))


def _settle(seconds: float) -> None:
    """Let the file system forget the builder.

    It has deleted as many files in minutes as maintenance does in half a day, and ext4 without
    a journal goes out of its way to avoid inodes that were in use a minute ago: for so long,
    creating a file takes up to thirty times as long as anywhere else.
    """
    progress(f"waiting {seconds:.0f} s for the file system to settle")
    time.sleep(seconds)


def _empty() -> Times:
    return {"append": [], "tail": [], "ddl": [], "open": []}


def _measure(path: Path, times: Times) -> None:
    """One turn on a log, with maintenance beside the appends."""
    log = AgedLog(path)
    try:
        reader = Log(path)
        follower = reader.batches(reader.end, follow=True)
        for number in range(WARM_UP + TIMES // TURNS):
            began = time.perf_counter()
            log.append()
            appended = time.perf_counter()
            _follow(follower)
            if number >= WARM_UP:
                times["append"].append(appended - began)
                times["tail"].append(time.perf_counter() - appended)
        for _ in range(OPENS):
            began = time.perf_counter()
            log.append(ddl=True)
            times["ddl"].append(time.perf_counter() - began)
    finally:
        log.close()
    for _ in range(OPENS):
        began = time.perf_counter()
        Log(path).shapes()
        times["open"].append(time.perf_counter() - began)


def _follow(follower: Iterator[pa.RecordBatch]) -> None:
    """Read the commit that is there: what a wake-up costs without the wait for it."""
    rows = next(follower).num_rows
    if rows != ROWS_PER_COMMIT:
        raise SystemExit(f"the follower got {rows} rows, {ROWS_PER_COMMIT} were appended")


def _said(times: Times) -> str:
    return ", ".join(
        f"{what} {median(values) * 1000:.2f} ms (p95 {percentile(values, 95) * 1000:.2f})"
        for what, values in times.items()
    )


def _facts(path: Path) -> dict[str, int]:
    """How large the log is: files that it consists of, and files of its Delta log."""
    log = Log(path)
    snapshot = log.snapshot()
    return {
        "version": snapshot.version,
        "data_files": len(snapshot.files),
        "rows": sum(file.rows for file in snapshot.files),
        "shapes": len(log.shapes()),
        "commit_files": sum(1 for _ in (path / CHANGES / "_delta_log").glob("*.json")),
    }


def _figures(runs: dict[str, Times]) -> dict[str, float]:
    medians = {what: (median(runs["old"][what]), median(runs["fresh"][what])) for what in _empty()}
    ratios = {f"ratio_{what}": old / fresh for what, (old, fresh) in medians.items()}
    return {
        "ratio": max(ratios["ratio_append"], ratios["ratio_tail"]),
        **ratios,
        "limit_s": medians["append"][1],
        "pgtide_s": medians["append"][0],
        **{f"{what}_s": old for what, (old, _) in medians.items()},
        **{f"{what}_s_fresh": fresh for what, (_, fresh) in medians.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
