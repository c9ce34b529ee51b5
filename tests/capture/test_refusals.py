"""The source is not what the log knows: capture stops, and says who must do what."""

from __future__ import annotations

import shutil

import pytest

from pgtide.capture.startup import check_timeline
from pgtide.errors import (
    ConfigError,
    InvalidText,
    OtherSource,
    PgtideError,
    PrivilegeMissing,
    PublicationChanged,
    PublicationMissing,
    SlotAdvanced,
    SlotInvalidated,
    SlotMissing,
    SourceRewound,
    TimelineDiverged,
)
from pgtide.log.writer import LogWriter
from pgtide.position import Lsn
from pgtide.postgres.embedded import bundled_bin_dir
from tests.fixtures.capture import (
    Captured,
    MakeCaptured,
    flushed,
)
from tests.fixtures.databases import Database, Server
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until

GEARS = ("live", "bulk")


# -- the slot and the source are not what the log knows -------------------------


def test_the_slot_was_dropped(captured: Captured) -> None:
    captured.execute("SELECT pg_drop_replication_slot(%s)", [captured.config.source.slot])
    with pytest.raises(SlotMissing, match="does not exist") as caught:
        captured.capture()
    assert "pgtide init" in caught.value.hint


def test_the_slot_was_dropped_while_nobody_held_it(captured: Captured) -> None:
    with captured.capturing("live") as running:
        running.wait(flushed(captured.database))
        slot = captured.config.source.slot

        def dropped() -> bool:
            captured.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active_pid IS NOT NULL",
                [slot],
            )
            try:
                captured.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            except Exception:
                return False
            return True

        wait_until(dropped, "the slot to be dropped")
        assert isinstance(running.failure(), SlotMissing)
        running.error = None


def test_the_slot_was_invalidated(make_server: MakeServer, make_captured: MakeCaptured) -> None:
    server = make_server(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL")

    def lost() -> bool:
        captured.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 9000000))")
        captured.execute("SELECT pg_switch_wal()")
        captured.execute("CHECKPOINT")
        return bool(captured.slot()["wal_status"] == "lost")

    wait_until(lost, "the slot to be invalidated")
    with pytest.raises(SlotInvalidated) as caught:
        captured.capture()
    assert "pgtide destroy" in caught.value.hint


def test_the_slot_was_advanced_past_the_log(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    captured.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())",
        [captured.config.source.slot],
    )
    with pytest.raises(SlotAdvanced, match="past the log"):
        captured.capture()


def test_the_log_of_another_database(
    make_captured: MakeCaptured, make_server: MakeServer, database: Database
) -> None:
    ours, other = make_captured(), make_captured(Database.create(make_server()))
    shutil.rmtree(ours.config.log.path)
    shutil.copytree(other.config.log.path, ours.config.log.path)
    with pytest.raises(OtherSource, match="another database") as caught:
        ours.capture()
    assert database.name in caught.value.detail


def test_the_server_is_behind_the_log(captured: Captured) -> None:
    log = captured.config.log
    writer = LogWriter(log.path, log.storage, captured.config.source.slot)
    writer.commit([], Lsn(writer.position + (1 << 40)), 1)
    with pytest.raises(SourceRewound):
        captured.capture()


def test_a_server_crash_moves_the_slot_back(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    server = make_server(fsync="on")
    captured = make_captured(Database.create(server))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("CHECKPOINT")
    for number in range(3):
        captured.execute("INSERT INTO t VALUES (%s)", [number])
        captured.capture("live" if number % 2 else "bulk")
        server.restart("immediate")
        assert captured.confirmed() <= captured.log.position
    captured.capture()
    assert [after["id"] for _, _, after in captured.changes()] == ["0", "1", "2"]
    captured.check_log()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("ALTER ROLE {role} NOREPLICATION", PrivilegeMissing),
        ("ALTER ROLE {role} NOLOGIN", ConfigError),
        ("REVOKE CONNECT ON DATABASE {database} FROM PUBLIC", PrivilegeMissing),
    ],
)
def test_a_role_that_lost_its_rights(
    make_captured: MakeCaptured, database: Database, change: str, kind: type[PgtideError]
) -> None:
    """Trying again for ever would change nothing."""
    captured = make_captured(url=database.create_role("LOGIN REPLICATION"), admin_url=database.url)
    database.execute(change.format(role=database.roles[0], database=database.name))
    with pytest.raises(kind) as caught:
        captured.capture()
    assert "pgtide check" in caught.value.hint


HISTORY = "1\t0/3000000\tno recovery target specified\n\n2\t0/5000000\tbefore x\n"


@pytest.mark.parametrize(
    ("ours", "now", "position", "fine"),
    [
        (1, 2, "0/2FFFFFF", True),
        (1, 2, "0/3000000", True),
        (1, 2, "0/3000001", False),
        (1, 3, "0/3000000", True),
        (2, 3, "0/4000000", True),
        (2, 3, "0/5000001", False),
        (4, 3, "0/1", False),
    ],
)
def test_timelines(ours: int, now: int, position: str, fine: bool) -> None:
    if fine:
        check_timeline(HISTORY, ours, now, Lsn.parse(position))
        return
    with pytest.raises(TimelineDiverged, match="promoted"):
        check_timeline(HISTORY, ours, now, Lsn.parse(position))


def test_a_timeline_without_history() -> None:
    with pytest.raises(TimelineDiverged):
        check_timeline("", 2, 1, Lsn(8))


def test_bytes_that_are_no_text_in_names_and_prefixes(
    make_captured: MakeCaptured, server: Server
) -> None:
    """The hint fits what cannot be sent."""
    database = Database.create(server, "SQL_ASCII")
    try:
        name = "DO $$ BEGIN EXECUTE 'CREATE TABLE x' || E'\\377' || ' (id int PRIMARY KEY)'; END $$"
        database.execute(name)
        with pytest.raises(InvalidText, match="a name") as caught:
            make_captured(database)
        assert "Rename" in caught.value.hint
        database.execute("DO $$ BEGIN EXECUTE 'DROP TABLE x' || E'\\377'; END $$")
        captured = make_captured(database)
        captured.execute(r"SELECT pg_logical_emit_message(true, 'fine', E'\377'::text)")
        captured.capture()
        assert [e.payload and e.payload["content_base64"] for e in captured.events()] == ["/w=="]
        captured.execute(r"SELECT pg_logical_emit_message(true, E'\377', 'x')")
        for gear in GEARS:
            with pytest.raises(InvalidText, match="prefix of a logical message") as caught:
                captured.capture(gear)
            assert "column" not in caught.value.hint
            assert "pgtide init" in caught.value.hint
    finally:
        database.drop()


# -- the publication ------------------------------------------------------------


@pytest.mark.parametrize("version", [16, 18])
@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_dropped_while_streaming(
    make_server: MakeServer, make_captured: MakeCaptured, gear: str, version: int
) -> None:
    captured = make_captured(Database.create(make_server(bundled_bin_dir(version))))
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        before = captured.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        captured.execute(f"DROP PUBLICATION {captured.config.source.slot}")
        captured.execute("INSERT INTO t VALUES (2)")
        captured.execute("INSERT INTO t VALUES (3)")
        assert isinstance(running.failure(), PublicationMissing)
        running.error = None
    # What the server skipped is not vouched for.
    assert captured.log.position <= Lsn.parse(before) + 8192
    after = flushed(captured.database)
    assert captured.log.position < after
    with pytest.raises(PublicationMissing):
        captured.capture()


@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_altered_while_event_triggers_are_off(
    captured: Captured, gear: str
) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        for (name,) in captured.execute("SELECT quote_ident(evtname) FROM pg_event_trigger"):
            captured.execute(f"ALTER EVENT TRIGGER {name} DISABLE")
        publication = captured.config.source.slot
        captured.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert')")

        def noticed() -> bool:
            captured.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            return running.error is not None

        wait_until(noticed, "capture to notice")
        assert isinstance(running.failure(), PublicationChanged)
        running.error = None


@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_altered_while_streaming(captured: Captured, gear: str) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        captured.execute(f"ALTER PUBLICATION {captured.config.source.slot} SET (publish='insert')")
        captured.execute("DELETE FROM t")
        error = running.failure()
        running.error = None
    assert isinstance(error, PublicationChanged)
    assert "pgtide init" in error.hint


@pytest.mark.parametrize("gear", GEARS)
def test_without_ddl_messages_the_publication_is_looked_at_before_every_commit(
    make_captured: MakeCaptured, database: Database, gear: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    captured = make_captured(ddl=False)
    with captured.capturing(gear) as running:
        running.wait(flushed(captured.database))
        captured.execute(f"ALTER PUBLICATION {captured.config.source.slot} SET (publish='insert')")
        ((altered,),) = captured.execute("SELECT pg_current_wal_flush_lsn()::text")
        captured.execute("DELETE FROM t")
        captured.execute("INSERT INTO t VALUES (2)")
        assert isinstance(running.failure(), PublicationChanged)
        running.error = None
    assert captured.log.position <= Lsn.parse(altered)


@pytest.mark.parametrize("gear", GEARS)
def test_the_publication_is_altered_and_altered_back(captured: Captured, gear: str) -> None:
    """Rows in between were never published: that is said, once, and not passed over."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (1)")
    captured.capture(gear)
    publication = captured.config.source.slot
    captured.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert')")
    captured.execute("DELETE FROM t")
    everything = "insert, update, delete, truncate"
    captured.execute(f"ALTER PUBLICATION {publication} SET (publish = '{everything}')")
    captured.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(PublicationChanged, match="while capture ran"):
        captured.capture(gear)
    for _ in range(2):
        try:
            captured.capture(gear)
        except PublicationChanged:
            continue  # the second of the two changes
        break
    assert [event.after for event in captured.events("insert")] == [{"id": "1"}, {"id": "2"}]
