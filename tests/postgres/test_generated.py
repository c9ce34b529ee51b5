"""Generated columns and replica identity, release by release."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtide.errors import IdentityMissing
from pgtide.postgres.embedded import bundled_bin_dir
from pgtide.postgres.health import LogProbe, run_checks
from pgtide.postgres.setup import init
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.postgres.source import PreparedSource, make_config, tables


@pytest.fixture
def database18(make_server: MakeServer) -> Database:
    directory: Path = bundled_bin_dir(18)
    return Database.create(make_server(directory))


def test_stored_columns_are_published_and_full_identity_works(database18: Database) -> None:
    source = PreparedSource(database18)
    source.execute("CREATE TABLE t (x int, y int GENERATED ALWAYS AS (x + 1) STORED)")
    source.execute("INSERT INTO t VALUES (1); UPDATE t SET x = 2; DELETE FROM t")


def test_later_table_that_only_a_key_can_help_is_reported(database18: Database) -> None:
    source = PreparedSource(database18)
    body = source.one("CREATE TABLE t (x int, y int GENERATED ALWAYS AS (x + 1) VIRTUAL)")
    assert body["identity_failed"] == [tables(body)["t"]["oid"]]
    probe = run_checks(source.config, LogProbe("log"))
    (check,) = [check for check in probe if check.name == "replica identity"]
    assert (check.level, check.hint) == ("fail", "Add a primary key to public.t.")


def test_virtual_columns_rule_out_full(database18: Database) -> None:
    database18.execute("CREATE TABLE t (x int, y int GENERATED ALWAYS AS (x + 1) VIRTUAL)")
    with pytest.raises(IdentityMissing) as caught:
        init(make_config(database18, keyless="full"))
    assert "primary key" in caught.value.hint
    assert "ALTER TABLE" not in caught.value.hint
    database18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with pytest.raises(IdentityMissing):
        init(make_config(database18))
    init(make_config(database18, keyless="insert"))
    database18.execute("INSERT INTO t VALUES (1); UPDATE t SET x = 2; DELETE FROM t")
