"""Finding a pg_dump, and what it is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pgtide.errors import ConfigError, EnvironmentMissing
from pgtide.postgres.connection import connect
from pgtide.postgres.embedded import bundled_bin_dir
from pgtide.postgres.pg_dump import connection_of, dump_schema, find_pg_dump, major_of
from tests.fixtures.databases import Database


def test_the_nearest_release_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pgtide.postgres.pg_dump.PLACES", ())
    assert [major_of(find_pg_dump(major)) for major in (14, 16, 17, 18)] == [16, 16, 18, 18]
    monkeypatch.setenv("PATH", str(bundled_bin_dir(18)))
    assert major_of(find_pg_dump(16)) == 16
    with pytest.raises(EnvironmentMissing, match="no pg_dump of Postgres 99") as raised:
        find_pg_dump(99)
    assert "postgresql-client-99" in raised.value.hint


def test_a_given_one_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTIDE_PG_DUMP", str(bundled_bin_dir(16) / "pg_dump"))
    assert major_of(find_pg_dump(14)) == 16
    with pytest.raises(EnvironmentMissing, match="can read Postgres 18") as raised:
        find_pg_dump(18)
    assert "it is of Postgres 16" in raised.value.detail
    monkeypatch.setenv("PGTIDE_PG_DUMP", "/nowhere/pg_dump")
    with pytest.raises(EnvironmentMissing, match="can read Postgres 16"):
        find_pg_dump(16)


def test_secrets_are_no_arguments(database: Database) -> None:
    url = database.create_role("LOGIN")
    password = url.rpartition("=")[2]
    with connect(url) as session:
        dsn, environment = connection_of(url, session)
        assert password not in dsn
        assert environment["PGPASSWORD"] == password
        with connect(dsn + f" password={password}") as again:
            assert again.info.dbname == database.name
        with pytest.raises(ConfigError, match="sslpassword"):
            connection_of(f"{url}&sslpassword=secret", session)


def test_ctrl_c_is_not_for_it(database: Database, tmp_path: Path) -> None:
    """A terminal sends it to a whole group of processes; we end cleanly, without its help."""
    program = tmp_path / "pg_dump"
    program.write_text(f"#!{sys.executable}\nimport os\nprint(os.getpgrp())\n")
    program.chmod(0o755)
    with connect(database.url) as session:
        group = dump_schema(
            program,
            database.url,
            session,
            section="pre-data",
            snapshot="",
            exclude_schemas=(),
            exclude_tables=(),
        )
    assert int(group) != os.getpgrp()
