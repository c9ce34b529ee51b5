"""A standby takes over: accepted when it has all that the log has, refused when it has not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtide.errors import SourceRewound, TimelineDiverged
from pgtide.position import Lsn
from pgtide.postgres.embedded import EmbeddedPostgres, bundled_bin_dir
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer, MakeStandby
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def primary(make_server: MakeServer) -> EmbeddedPostgres:
    return make_server(bundled_bin_dir(18), fsync="on")


@pytest.fixture
def captured(primary: EmbeddedPostgres, make_captured: MakeCaptured) -> Captured:
    captured = make_captured(Database.create(primary))
    captured.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (1)")
    return captured


@pytest.fixture
def standby(
    primary: EmbeddedPostgres, captured: Captured, make_standby: MakeStandby
) -> EmbeddedPostgres:
    """A standby that holds the capture's slot for good."""
    standby = make_standby(
        primary,
        sync_replication_slots="on",
        hot_standby_feedback="on",
        primary_slot_name="standby",
    )

    def synced() -> bool:
        # Until the slot passes what the standby holds back, its copy is temporary.
        captured.execute("SELECT pg_log_standby_snapshot()")
        captured.capture("live")
        there = Database(standby, "postgres").execute(
            "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s",
            [captured.config.source.slot],
        )
        return there == [(True,)]

    wait_until(synced, "the slot to be there", 60)
    return standby


def on(standby: EmbeddedPostgres, captured: Captured) -> Captured:
    """The same capture, pointed at the standby."""
    database = Database(standby, captured.database.name)
    source = {**captured.settings["source"], "url": database.url}
    return replace(captured, database=database, settings={**captured.settings, "source": source})


def promote(standby: EmbeddedPostgres) -> None:
    Database(standby, "postgres").execute("SELECT pg_promote()")


def test_a_promoted_standby_goes_on(
    primary: EmbeddedPostgres, captured: Captured, standby: EmbeddedPostgres
) -> None:
    captured.execute("INSERT INTO t VALUES (2)")
    captured.capture()
    captured.execute("INSERT INTO t VALUES (3)")  # not in the log yet
    ((end,),) = captured.execute("SELECT pg_current_wal_flush_lsn()::text")
    after = on(standby, captured)
    wait_until(
        lambda: (
            Lsn.parse(after.execute("SELECT pg_last_wal_replay_lsn()::text")[0][0])
            >= Lsn.parse(end)
        ),
        "the standby to have everything",
    )
    primary.stop("immediate")
    promote(standby)
    after.execute("INSERT INTO t VALUES (4)")
    after.capture("live")
    after.execute("INSERT INTO t VALUES (5)")
    after.capture("bulk")
    assert [values["id"] for _, _, values in after.changes()] == ["1", "2", "3", "4", "5"]
    after.check_log()


def test_a_standby_that_lacks_what_the_log_has_is_refused(
    primary: EmbeddedPostgres, captured: Captured, standby: EmbeddedPostgres
) -> None:
    standby.stop("fast")
    captured.execute("INSERT INTO t SELECT generate_series(2, 1000)")
    captured.capture()
    position = captured.log.position
    primary.stop("immediate")
    standby.start()
    promote(standby)
    after = on(standby, captured)
    with pytest.raises((TimelineDiverged, SourceRewound)) as caught:
        after.capture()
    assert "pgtide destroy" in caught.value.hint
    after.execute("INSERT INTO t SELECT generate_series(2000, 4000)")
    after.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000))")
    with pytest.raises(TimelineDiverged, match="promoted from a point before the end"):
        after.capture()
    assert after.log.position == position


def test_a_backlog_is_not_read_before_the_standby_has_it(
    primary: EmbeddedPostgres, captured: Captured, standby: EmbeddedPostgres
) -> None:
    """The slot would wait for the standby, and so does the copy of it."""
    captured.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
    captured.execute("SELECT pg_reload_conf()")
    standby.stop("fast")
    captured.execute("INSERT INTO t SELECT generate_series(2, 1000)")
    with captured.capturing("bulk") as running:
        wait_until(lambda: running.progress.gear == "bulk", "the bulk gear")
        received = Lsn.parse(
            captured.execute(
                "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = 'standby'"
            )[0][0]
        )
        wait_until(lambda: captured.log.position >= received, "what the standby has")
        assert len(captured.changes()) == 1
        standby.start()
        wait_until(lambda: len(captured.changes()) == 1000, "the rest")
