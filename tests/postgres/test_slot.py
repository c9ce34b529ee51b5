"""The slot's state, and who is attached to it."""

from __future__ import annotations

import pytest
from psycopg import sql

from pgtide.errors import SlotBusy
from pgtide.postgres.connection import connect
from pgtide.postgres.slot import (
    SlotCreation,
    capture_lock_key,
    capture_pids,
    drop_slot,
    read_slot,
    refuse_while_captured,
)
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until


def test_absent_slot(database: Database) -> None:
    with connect(database.url) as conn:
        assert not read_slot(conn, "nowhere").exists
        drop_slot(conn, "nowhere")


def test_created_slot_has_a_snapshot_and_failover(database: Database) -> None:
    with connect(database.url) as conn:
        version = conn.info.server_version
        creation = SlotCreation(
            database.url, database.name, version=version, failover=version >= 170_000
        )
        with creation as created:
            database.execute("CREATE TABLE later ()")
            with conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                snapshot = sql.Literal(created.snapshot)
                conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
                row = conn.execute(
                    "SELECT count(*) FROM pg_class WHERE relname = 'later'"
                ).fetchone()
                assert row == (0,)
        state = read_slot(conn, database.name)
        assert (state.exists, state.plugin, state.database) == (True, "pgoutput", database.name)
        assert state.confirmed_flush_lsn == created.consistent_point
        assert state.active_pid is None
        assert not state.invalid
        assert state.failover == (True if version >= 170_000 else None)
        drop_slot(conn, database.name)
        assert not read_slot(conn, database.name).exists


def test_lock_shows_an_attached_capture(database: Database) -> None:
    with connect(database.url) as conn, connect(database.url) as capture:
        assert capture_pids(conn, "tide") == []
        lock = sql.SQL("SELECT pg_try_advisory_lock({})").format(capture_lock_key("tide"))
        capture.execute(lock)
        assert capture_pids(conn, "tide") == [capture.info.backend_pid]
        assert capture_pids(conn, "other") == []
        with pytest.raises(SlotBusy):
            refuse_while_captured(conn, "tide")


@pytest.mark.slow
def test_invalidated_slot_is_told(make_server: MakeServer) -> None:
    server = make_server(
        max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB", wal_keep_size="0"
    )
    with connect(server.url()) as conn:
        conn.execute("SELECT pg_create_logical_replication_slot('tide', 'pgoutput')")

        def lost() -> bool:
            conn.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 20000000))")
            conn.execute("SELECT pg_switch_wal()")
            conn.execute("CHECKPOINT")
            return read_slot(conn, "tide").invalid

        wait_until(lost, "the slot to be invalidated")
