"""Five million rows from one database into another, against ``pg_dump | psql``.

The limit copies schema, rows and key by ``pg_dump | psql``; beside it ``COPY | COPY`` of the rows
alone. pgtide copies the schema, takes the snapshot into its log, brings it into the target and
makes the key there; every target is compared with the source. In turn, one Spark session that has
done it before; starting it is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import child
from benchmarks.replica import second_server
from benchmarks.report import Bar, finish, median, progress
from benchmarks.server import Server, running, work_directory
from benchmarks.snapshot import TABLE, make_table

BARS = (Bar("ratio", ">=", 0.8),)


def main() -> int:
    options = _options()
    with (
        work_directory(options.directory) as directory,
        running(directory) as source,
        second_server(directory) as target,
    ):
        make_table(source, "t", options.rows)
        names = [f"copy{n}" for n in range(options.runs + 1)]
        configs = [_configured(source, target, name) for name in names]
        process = child.start("copying_jobs", *map(str, configs), answered=True)
        assert process.stdin is not None
        dumped, copied = [], []
        for run in range(options.runs + 1):
            child.expect(process, "ready")
            dumped.append(_dump(source, target, f"dump{run}"))
            copied.append(_copy(source, target, f"plain{run}"))
            progress(f"pg_dump | psql {dumped[-1]:.2f} s  COPY | COPY {copied[-1]:.2f} s")
            process.stdin.write("go\n")
            process.stdin.flush()
        figures = child.answer(process)
    figures["limit"], figures["copy"] = dumped[1:], copied[1:]
    ours, limit = median(figures["pgtide"]), median(figures["limit"])
    report = {
        "ratio": limit / ours,
        "limit_s": limit,
        "copy_s": median(figures["copy"]),
        "pgtide_s": ours,
        "snapshot_s": median(figures["snapshot"]),
        "rows_per_s": options.rows / ours,
        "cpu_s": figures["cpu_s"],
        "peak_rss_mb": figures["peak_rss_mb"],
    }
    return finish("copy", report, BARS, figures, rows=options.rows)


def _configured(source: Server, target: Server, name: str) -> Path:
    with target.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    sink = {"type": "postgres", "url": target.postgres.url(dbname=name)}
    given = {"snapshot": "initial"}
    return source.init(name, source=given, pipelines={"replica": {"sink": sink}})


def _dump(source: Server, target: Server, name: str) -> float:
    with target.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    out = source.tool("pg_dump", "-t", "public.t", "postgres")
    into = target.tool("psql", "-q", "-v", "ON_ERROR_STOP=1", name)
    return _piped(out, into, target, name)


def _copy(source: Server, target: Server, name: str) -> float:
    with target.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    columns = TABLE.format(name="t")
    subprocess.run(target.tool("psql", "-q", "-c", columns, name), check=True)
    out = source.tool("psql", "-c", "COPY t TO STDOUT", "postgres")
    return _piped(out, target.tool("psql", "-c", "COPY t FROM STDIN", name), target, name)


def _piped(out: list[str | Path], into: list[str | Path], target: Server, name: str) -> float:
    """Seconds from one program into the other; the database is dropped afterwards."""
    began = time.perf_counter()
    with subprocess.Popen(out, stdout=subprocess.PIPE) as first:
        done = subprocess.run(into, stdin=first.stdout, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - began
    assert not done.returncode
    with target.connect() as connection:
        connection.execute(f"DROP DATABASE {name}".encode())
    return seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on a disk")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
