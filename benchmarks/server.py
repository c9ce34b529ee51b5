"""The server under the benchmarks: an embedded Postgres with durable, production-like settings.

Server and logs lie in one new directory on a real disk, which is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import child
from benchmarks.report import progress
from pgtide import Log
from pgtide.postgres.embedded import EmbeddedPostgres

SETTINGS = {
    "fsync": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_replication_slots": "100",
    "max_wal_senders": "20",
    # A timed checkpoint or a vacuum would fall into some runs and not into others.
    "checkpoint_timeout": "30min",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the directory that logs go to."""

    postgres: EmbeddedPostgres
    directory: Path

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.postgres.url(), autocommit=True)

    def tool(self, name: str, *arguments: str, tcp: bool = False) -> list[str | Path]:
        """The command line of a Postgres client program, with how to connect."""
        host = "127.0.0.1" if tcp else str(self.postgres.socket_directory)
        where = ["-h", host, "-p", str(self.postgres.port), "-U", "postgres"]
        return [self.postgres.psql_tools / name, *where, *arguments]

    def configure(
        self,
        slot: str,
        *,
        name: str = "",
        tcp: bool = False,
        source: Mapping[str, Any] | None = None,
        sections: Mapping[str, Any] | None = None,
        **log: str,
    ) -> Path:
        """Write a configuration file for a slot with a log of its own."""
        config = {
            "source": {
                "url": self.postgres.url(tcp=tcp),
                "slot": slot,
                "tables": ["public.*"],
                "snapshot": "never",
                "keyless": "full",  # pgbench_history has no key; nothing updates it
                **(source or {}),
            },
            "log": {"path": str(self.directory / slot), **log},
            **(sections or {}),
        }
        file = self.directory / f"{name or slot}.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        return file

    def init(
        self,
        slot: str,
        *,
        tcp: bool = False,
        source: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> Path:
        """Make slot, publication and log as a user would; the configuration file."""
        config = self.configure(slot, tcp=tcp, source=source, sections=sections)
        child.pgtide(config, "init")
        return config

    def age(self, slot: str, commits: int, interval_s: float = 0.5) -> None:
        """Put commits behind a slot's log, as if it had been there for long.

        They lie before anything that the server will send: it skips their part of the WAL.
        """
        log = self.directory / slot
        progress(f"{commits} commits behind the log of {slot}")
        child.answer(child.start("aged_log", str(log), str(commits), str(interval_s), slot))
        end = Log(log).end
        with self.connect() as connection:
            while connection.execute(
                "SELECT pg_current_wal_insert_lsn() <= %s::pg_lsn", [str(end.lsn)]
            ).fetchone() == (True,):
                connection.execute("SELECT pg_logical_emit_message(false, 'benchmark', '')")
                connection.execute("SELECT pg_switch_wal()")


@contextmanager
def work_directory(parent: Path) -> Iterator[Path]:
    """A new directory on a disk; a tmpfs is refused, where durability would cost nothing."""
    kind = _filesystem(parent.resolve())
    if kind in ("tmpfs", "ramfs"):
        raise SystemExit(f"{parent} is a {kind}: name a directory on a disk with --directory")
    directory = Path(tempfile.mkdtemp(prefix="pgtide-bench-", dir=parent))
    # The server may run as another user, see EmbeddedPostgres.
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(directory: Path) -> Iterator[Server]:
    """A server in the directory, stopped at the end."""
    with EmbeddedPostgres(directory / "postgres", settings=SETTINGS) as postgres:
        yield Server(postgres, directory)


def _filesystem(path: Path) -> str:
    """The type of the file system that holds a path; empty where the system does not say."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    found, kind = "", ""
    for line in mounts.read_text().splitlines():
        _, point, type_, *_ = line.split()
        inside = os.path.commonpath([point, path]) == point
        if inside and len(point) >= len(found):
            found, kind = point, type_
    return kind
