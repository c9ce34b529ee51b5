"""Someone moves the slot while no walsender holds it: capture stops before it skips anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgtide.capture import bulk, session
from pgtide.capture.session import CaptureSession
from pgtide.capture.stream import advance
from pgtide.errors import OtherSource, SlotAdvanced, SlotInvalidated
from pgtide.postgres.connection import connect
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until

Mischief = Callable[[Captured], None]


def advanced(captured: Captured) -> None:
    captured.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())",
        [captured.config.source.slot],
    )


def made_again(captured: Captured) -> None:
    slot = captured.config.source.slot
    captured.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    captured.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


@pytest.mark.parametrize("mischief", [advanced, made_again])
@pytest.mark.parametrize("moment", ["_run_bulk", "_drain_backlog"])
def test_the_slot_moves_around_the_bulk_gear(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, moment: str, mischief: Mischief
) -> None:
    """Before the copy is made, and while the copy is read."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    monkeypatch.setattr(session, "BULK_ENTER_BYTES", 10)
    method = getattr(CaptureSession, moment)
    done: list[bool] = []

    def with_mischief(self: CaptureSession, *args: object) -> None:
        if moment == "_drain_backlog":
            method(self, *args)
        if not done:
            done.append(True)
            captured.execute("INSERT INTO t VALUES (5000)")
            mischief(captured)
            captured.execute("INSERT INTO t VALUES (5001)")
        if moment == "_run_bulk":
            method(self, *args)

    monkeypatch.setattr(CaptureSession, moment, with_mischief)
    with pytest.raises(SlotAdvanced, match="past the log") as caught, captured.capturing() as run:
        wait_until(lambda: run.error is not None, "capture to notice")
    assert "pgtide destroy" in caught.value.hint
    assert "5001" not in [after["id"] for _, _, after in captured.changes("t")]


def test_the_slot_moves_before_the_live_gear(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    run_live = CaptureSession._run_live

    def after_mischief(self: CaptureSession) -> None:
        captured.execute("INSERT INTO t VALUES (5000)")
        advanced(captured)
        run_live(self)

    monkeypatch.setattr(CaptureSession, "_run_live", after_mischief)
    with pytest.raises(SlotAdvanced):
        captured.capture("live")


def test_the_slot_is_lost_while_its_copy_is_read(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    server = make_server(max_slot_wal_keep_size="16MB", max_wal_size="32MB", min_wal_size="32MB")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int)")

    def lost() -> bool:
        captured.execute("INSERT INTO t SELECT generate_series(1, 50000)")
        captured.execute("SELECT pg_switch_wal()")
        captured.execute("CHECKPOINT")
        return bool(captured.slot()["wal_status"] == "lost")

    wait_until(lost, "the slot to be invalidated")
    with connect(captured.database.url) as conn, pytest.raises(SlotInvalidated) as caught:
        advance(conn, captured.config.source.slot, flushed(captured.database))
    assert "pgtide destroy" in caught.value.hint


def test_the_slot_of_another_log(make_captured: MakeCaptured, database: Database) -> None:
    """The hint must not lead to the end of the other capture's slot."""
    ours = make_captured(database)
    database.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"{database.name}_x"]
    )
    source = {**ours.settings["source"], "slot": f"{database.name}_x"}
    config = ours.config.model_validate({**ours.settings, "source": source})
    with pytest.raises(OtherSource, match="another slot") as caught:
        ours.capture(config=config)
    assert "destroy" not in caught.value.hint


def test_stopping_while_the_server_collects_a_later_batch(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the batch, and what came before is durable."""
    monkeypatch.setattr(bulk, "BULK_MESSAGES", 1000)
    captured.execute("CREATE TABLE t (id int)")
    captured.execute("INSERT INTO t SELECT generate_series(1, 2000)")
    captured.execute("INSERT INTO t SELECT generate_series(1, 300000)")
    collecting: list[bool] = []
    begin = bulk.BatchReceiver._begin

    def counted(self: bulk.BatchReceiver) -> None:
        if self._collecting:
            collecting.append(True)
        begin(self)

    monkeypatch.setattr(bulk.BatchReceiver, "_begin", counted)
    with captured.capturing("bulk") as running:
        wait_until(lambda: len(collecting) == 2, "the second batch")
        running.capture.stop()
        wait_until(lambda: not running.thread.is_alive(), "the end")
    assert len(captured.events("insert")) == 2000, "what the server collected was not waited for"
