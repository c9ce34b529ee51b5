"""Running ``pg_dump``: finding one that fits the server, and keeping secrets out of its arguments.

A pg_dump reads servers of its own major release and older ones. Of those found, the one nearest to
the server is taken: a newer one writes syntax that an older target need not know.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from psycopg import conninfo

from pgtide.errors import ConfigError, EnvironmentMissing, SourceError, SourceExhausted
from pgtide.postgres.connection import SqlConnection
from pgtide.postgres.embedded import BUNDLED, bundled_bin_dir

VARIABLE = "PGTIDE_PG_DUMP"
LOCK_TIMEOUT_MS = 30_000
VERSION_TIMEOUT_S = 20.0

# Where packages of Postgres put the programs of each release.
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Library/PostgreSQL/*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)

# Of these only the password can be given by the environment.
_SECRETS = (
    *("password", "sslpassword", "scram_client_key", "scram_server_key"),
    "oauth_client_secret",
)

_OPTIONS = (
    *("--schema-only", "--no-owner", "--no-privileges", "--no-publications"),
    *("--no-subscriptions", "--no-security-labels", "--no-tablespaces", "--no-password"),
    *("--encoding=UTF8", f"--lock-wait-timeout={LOCK_TIMEOUT_MS}"),
)


def find_pg_dump(major: int) -> Path:
    """A pg_dump that can read a server of this major release."""
    if given := os.environ.get(VARIABLE):
        return _given(Path(given), major)
    found: dict[int, Path] = {}
    for candidate in _candidates():
        version = major_of(candidate)
        if version is not None and version >= major:
            found.setdefault(version, candidate)
    if not found:
        raise EnvironmentMissing(
            f"there is no pg_dump of Postgres {major} or newer",
            detail="The schema of the source is read with it; an older one refuses the server.",
            hint=f"Install the client programs (Debian: apt install postgresql-client-{major}),"
            f" or set {VARIABLE} to the path of a pg_dump.",
        )
    return found[min(found)]


def major_of(program: Path) -> int | None:
    """The major release of a pg_dump; None if it is none, or does not run."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def dump_schema(
    program: Path,
    url: str,
    session: SqlConnection,
    *,
    section: str,
    snapshot: str,
    exclude_schemas: Sequence[str],
    exclude_tables: Sequence[tuple[str, str]],
) -> str:
    """One section of the schema as SQL, as ``snapshot`` sees it.

    ``session`` is connected to the same server: what it found the password in, pg_dump may not.
    """
    dsn, environment = connection_of(url, session)
    command = [
        *(str(program), f"--dbname={dsn}", f"--section={section}", f"--snapshot={snapshot}"),
        *_OPTIONS,
        *(f"--exclude-schema={_literal(name)}" for name in exclude_schemas),
        *(f"--exclude-table={_literal(s)}.{_literal(t)}" for s, t in exclude_tables),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            process_group=0,  # Ctrl-C is for us, who end cleanly, and not a failure of pg_dump
        )
    except OSError as exc:
        raise EnvironmentMissing(
            "pg_dump could not be started",
            detail=f"{exc.strerror}: {program}.",
            hint=f"Set {VARIABLE} to the path of a pg_dump.",
        ) from exc
    if done.returncode != 0:
        raise _failure(done.stderr.decode(errors="replace"))
    return done.stdout.decode()


def connection_of(url: str, session: SqlConnection) -> tuple[str, dict[str, str]]:
    """A connection string without secrets, and the environment that has the password."""
    given = {key: str(value) for key, value in conninfo.conninfo_to_dict(url).items() if value}
    if hidden := [name for name in _SECRETS[1:] if name in given]:
        raise ConfigError(
            f"{', '.join(hidden)} in source.url cannot be handed to pg_dump",
            detail="pg_dump would take it as an argument, which every user of the machine sees.",
            hint="Put it into a service file, and write service=… in source.url.",
        )
    environment = {**os.environ, "PGAPPNAME": "pgtide snapshot", "LC_ALL": "C"}
    password = given.pop("password", None) or session.info.password
    if password:
        environment["PGPASSWORD"] = password
    return conninfo.make_conninfo(**given), environment


def _given(program: Path, major: int) -> Path:
    version = major_of(program)
    if version is None or version < major:
        found = "it does not run" if version is None else f"it is of Postgres {version}"
        raise EnvironmentMissing(
            f"{VARIABLE} names no pg_dump that can read Postgres {major}",
            detail=f"{program}: {found}.",
            hint=f"Set {VARIABLE} to a pg_dump of Postgres {major} or newer, or unset it.",
        )
    return program


def _candidates() -> Iterator[Path]:
    if in_path := shutil.which("pg_dump"):
        yield Path(in_path)
    for pattern in PLACES:
        yield from sorted(Path("/").glob(f"{pattern.lstrip('/')}/pg_dump"))
    for major in BUNDLED:
        with suppress(EnvironmentMissing):
            yield bundled_bin_dir(major) / "pg_dump"


def _literal(name: str) -> str:
    """A name as a pattern that means it and nothing else."""
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


def _failure(said: str) -> SourceError | SourceExhausted:
    """What pg_dump said; it quotes its own queries, not rows."""
    lines = [line.removeprefix("pg_dump: ") for line in said.splitlines() if line.strip()]
    told = " ".join(line.removeprefix("error: ") for line in lines[:2]) or "It said nothing."
    if "lock timeout" in said:
        return SourceExhausted(
            "a table was not free for pg_dump",
            detail=told,
            hint="Run pgtide snapshot --schema again when nobody changes tables.",
        )
    return SourceError("pg_dump failed", detail=told)
