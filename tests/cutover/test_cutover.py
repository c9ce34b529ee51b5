"""Handing over to a target: what must hold, and that the source is given back when it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtide.config.connection_string import ConnectionString
from pgtide.cutover.cutting_over import Cutover
from pgtide.cutover.outcome import Outcome, Settings, document
from pgtide.cutover.unapplied import first_write
from pgtide.errors import PipelineError, TargetError, TargetUnavailable
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.state import Parked, now
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.postgres.verdict import Check
from tests.cutover.writers import commit_once_read_only
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import PIPELINE, Replica, target_database

TABLES = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);\n"
INSERT = "INSERT INTO orders (note) VALUES ('a'), ('b'), ('c');\n"


@pytest.fixture
def target(database: Database) -> Iterator[Database]:
    yield from target_database(database)


@pytest.fixture
def replica(spark: SparkSession, captured: Captured, target: Database) -> Replica:
    made = Replica(spark, captured, target)
    captured.run(TABLES)
    captured.run(INSERT)
    made.follow()
    return made


def cut_over(replica: Replica, **settings: Any) -> Outcome:
    given = Settings(verify=False, **settings)
    return Cutover(replica.spark, replica.config(), PIPELINE, given).run()


def levels(outcome: Outcome) -> dict[str, str]:
    return {check.name: check.level for check in outcome.checks}


def told(outcome: Outcome, name: str) -> Check:
    (found,) = [check for check in outcome.checks if check.name == name]
    return found


def at_check(name: str, do: Callable[[], object]) -> Callable[[Check], None]:
    """Do something when a check is made."""

    def on_check(check: Check) -> None:
        if check.name == name:
            do()

    return on_check


def test_triggers_are_the_applications_again(replica: Replica) -> None:
    """While the target follows they do nothing; then they do what they did at the source."""
    create = "CREATE TRIGGER {} AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing();\n"
    replica.captured.run(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\n"
        + "".join(create.format(name) for name in ("gone", "noted", "renamed", "resting"))
    )
    replica.captured.run(INSERT)
    replica.follow()
    enabled = (
        "SELECT tgname, tgenabled::text FROM pg_trigger"
        " WHERE NOT tgisinternal AND tgrelid = 'orders'::regclass ORDER BY 1"
    )
    names = ("gone", "noted", "renamed", "resting")
    assert replica.target.execute(enabled) == [(name, "D") for name in names]
    replica.captured.run(
        """ALTER TRIGGER renamed ON orders RENAME TO other;
ALTER TABLE orders DISABLE TRIGGER resting;
"""
    )
    replica.follow()
    replica.target.execute("DROP TRIGGER gone ON orders")
    assert cut_over(replica).ready
    assert replica.target.execute(enabled) == [("noted", "O"), ("other", "O"), ("resting", "D")]
    assert replica.target.execute("SELECT count(*) FROM pgtide.disabled") == [(0,)]


def test_rows_that_are_read_again_are_waited_for(replica: Replica) -> None:
    """Values that the target cannot compute: until they are read, its own stand there."""
    replica.captured.run("ALTER TABLE orders ADD COLUMN token uuid DEFAULT gen_random_uuid();\n")
    outcome = cut_over(replica)
    assert outcome.ready, outcome.checks
    assert told(outcome, "reads").level == "ok"
    replica.check_equal("orders")
    asked = Refresh("public.orders")
    store = RefreshStore(Storage(replica.config().log.path))
    store.add(asked)
    store.steer(asked.id, "pause")
    outcome = cut_over(replica)
    assert f"public.orders ({asked.id})" in told(outcome, "reads").message
    assert not outcome.ready
    store.steer(asked.id, "cancel")
    assert cut_over(replica).ready


def test_a_pipeline_that_fails_meanwhile_is_not_waited_for(replica: Replica) -> None:
    """Whoever runs it ends with an error that trying again does not help."""
    config = replica.config()
    replica.captured.run(INSERT)
    storage = Storage(config.log.path, config.log.storage)
    lease = Lease(storage, PIPELINE)
    lease.__enter__()

    def fail() -> None:
        StateFile(storage, PIPELINE).note_error(TargetError("refused", detail="Why.", hint="How."))
        lease.__exit__(None, None, None)

    began = time.monotonic()
    with pytest.raises(PipelineError, match="has failed: refused") as raised:
        cut_over(replica, on_check=at_check("lag", lambda: threading.Timer(1, fail).start()))
    assert (raised.value.detail, raised.value.hint) == ("Why.", "How.")
    assert time.monotonic() - began < 60


def test_what_was_committed_is_waited_for(replica: Replica) -> None:
    replica.captured.run(INSERT)
    outcome = cut_over(replica)
    assert outcome.ready, outcome.checks
    assert levels(outcome) == {
        **dict.fromkeys(("target", "lag", "caught up", "reads", "schema", "objects"), "ok"),
        "parked": "ok",
        "sequences": "ok",
        "quiet": "warn",
        "triggers": "ok",
    }
    assert "nothing keeps anybody from it" in told(outcome, "quiet").message
    replica.check_equal("orders")
    assert replica.target.execute("SELECT nextval('orders_id_seq')") == [(7,)]
    assert document(outcome)["sequences"]["set"] == ["public.orders_id_seq"]


def test_a_target_that_was_never_written_to(replica: Replica) -> None:
    replica.target.execute("DROP SCHEMA pgtide CASCADE")
    outcome = cut_over(replica, read_only=True)
    assert levels(outcome) == {"target": "fail"}
    replica.captured.run(INSERT)


def test_writers_are_seen(replica: Replica) -> None:
    for change in (INSERT, "CREATE TABLE more (id int PRIMARY KEY);\n"):
        write = partial(replica.captured.run, change)
        outcome = cut_over(replica, on_check=at_check("sequences", write))
        assert not outcome.ready
        assert "somebody writes to the source" in told(outcome, "quiet").message


def test_writes_are_waited_for_until_they_stop(replica: Replica) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.1):
            replica.captured.run(INSERT)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        outcome = cut_over(replica, quiet_s=1.0, wait_s=3.0)
        assert list(levels(outcome)) == ["target", "lag", "writes"]
        assert "writes did not stop within 3 s" in told(outcome, "writes").message
        threading.Timer(3, stop.set).start()
        outcome = cut_over(replica, quiet_s=1.0)
        assert stop.is_set()
        assert outcome.ready, outcome.checks
        assert told(outcome, "writes").message == "no table was changed for 1 s"
    finally:
        stop.set()
        writer.join()
    replica.check_equal("orders")


def test_a_commit_that_begins_where_the_wal_ended(replica: Replica) -> None:
    """Its record is the next one behind the position that was asked for: that is later."""
    replica.captured.run(INSERT)
    replica.captured.capture()
    at = replica.captured.events("insert")[-1].position.lsn
    written = first_write(replica.config(), PIPELINE, at, Lsn(at + 1))
    assert written is not None
    assert written.lsn == at
    assert first_write(replica.config(), PIPELINE, Lsn(at + 1), Lsn(at + 100)) is None


def test_read_only_stops_writers_and_stays(replica: Replica) -> None:
    database = replica.captured.database
    with database.connect() as idle, database.connect(autocommit=False) as writing:
        idle.execute("SELECT 1")
        writing.execute(INSERT)
        later = threading.Thread(target=commit_once_read_only, args=(database, writing))
        later.start()
        outcome = cut_over(replica, read_only=True)
        later.join()
        assert outcome.ready, outcome.checks
        for session in (idle, writing):
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT 1")
    replica.check_equal("orders")
    assert replica.target.execute("SELECT count(*) FROM orders") == [(6,)], "it could commit"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        database.execute(INSERT)
    assert outcome.undo is not None
    database.execute(outcome.undo)
    database.execute(INSERT)


def test_a_source_is_given_back(replica: Replica) -> None:
    """A transaction that does not end is ended, and the target is not ready: all can write."""
    database = replica.captured.database
    replica.target.execute(
        "INSERT INTO pgtide.after_rows VALUES ('replica', 1, 'CREATE INDEX ON orders (note)')"
    )
    during: list[psycopg.Connection[Any]] = []

    def join() -> None:
        during.append(database.connect())

    outcome = cut_over(replica, read_only=True, on_check=at_check("caught up", join))
    assert levels(outcome)["schema"] == "fail"
    assert (outcome.ready, outcome.undo) == (False, None)
    database.execute(INSERT)
    with pytest.raises(psycopg.OperationalError):
        during[0].execute("SELECT 1")
    setting = "SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase"
    assert database.execute(f"{setting} WHERE datname = current_database()") == [(0,)]


def test_a_source_that_was_read_only_before(replica: Replica) -> None:
    """As a cutover leaves it that was killed, or was well: what makes it writable is told again."""
    database = replica.captured.database
    database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = 'true'")
    replica.target.execute("INSERT INTO pgtide.after_rows VALUES ('replica', 1, 'SELECT 1')")
    for ready in (False, True):
        outcome = cut_over(replica, read_only=True)
        assert outcome.ready is ready, outcome.checks
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            database.execute(INSERT)
        replica.target.execute("DELETE FROM pgtide.after_rows")
    assert outcome.undo is not None
    database.execute(outcome.undo)
    database.execute(INSERT)


def test_an_earlier_setting_comes_back(replica: Replica) -> None:
    database = replica.captured.database
    alter = f"ALTER DATABASE {database.name} SET default_transaction_read_only = off"
    database.execute(alter)

    def fail() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cut_over(replica, read_only=True, on_check=at_check("caught up", fail))
    ((config,),) = database.execute(
        "SELECT setconfig FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase"
        " WHERE datname = current_database()"
    )
    assert config == ["default_transaction_read_only=off"]
    database.execute(INSERT)


def test_a_target_that_does_not_come_along(replica: Replica) -> None:
    config = replica.config()
    replica.captured.run(INSERT)
    with Lease(Storage(config.log.path, config.log.storage), PIPELINE):
        began = time.monotonic()
        outcome = cut_over(replica, wait_s=2.0)
    assert time.monotonic() - began < 30
    assert "did not get to" in told(outcome, "caught up").message


def test_a_target_that_is_lost(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    """It is told of that server, and that the other one is as it was."""

    def lose() -> None:
        replica.target.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgtide cutover'"
        )

    with pytest.raises(TargetUnavailable) as lost:
        cut_over(replica, read_only=True, on_check=at_check("read-only", lose))
    assert "pgtide cutover --pipeline replica" in lost.value.hint
    replica.captured.execute(INSERT)
    assert "the source can be written to as before" in caplog.text


def test_parked_tables_and_lost_sequences(replica: Replica) -> None:
    config = replica.config()
    file = StateFile(Storage(config.log.path, config.log.storage), PIPELINE)
    state = file.load()
    assert state is not None
    state.parked["public.orders"] = Parked(Position(Lsn(1)), "failed", "", "", now())
    file.save(state)
    replica.target.execute("ALTER TABLE orders ALTER id DROP IDENTITY")
    replica.target.execute("CREATE INDEX unknown_here ON orders (note)")
    replica.captured.execute("CREATE INDEX known_here ON orders (note)")
    replica.captured.execute("CREATE UNLOGGED TABLE cache (id int)")
    replica.captured.execute("SELECT lo_create(0)")
    replica.target.execute("INSERT INTO pgtide.skipped VALUES ('replica', '0/1', 0)")
    outcome = cut_over(replica, read_only=False)
    assert "pgtide.left_out" in told(outcome, "skipped").hint
    assert "public.cache" in told(outcome, "unlogged").message
    assert "1 of them" in told(outcome, "large objects").message
    assert told(outcome, "parked").level == "fail"
    assert "public.orders_id_seq" in told(outcome, "sequences").message


@pytest.mark.parametrize("granted", ["", "pg_monitor"])
def test_sessions_that_cannot_be_seen_or_ended(replica: Replica, granted: str) -> None:
    """Not ready, and the source is as it was."""
    database = replica.captured.database
    admin = database.create_role("LOGIN")
    name = database.roles[-1]
    database.execute(f"ALTER DATABASE {database.name} OWNER TO {name}")
    if granted:
        database.execute(f"GRANT {granted} TO {name}")
    config = replica.config()
    source = config.source.model_copy(update={"admin_url": ConnectionString(admin)})
    given = config.model_copy(update={"source": source})
    settings = Settings(read_only=True, verify=False)
    try:
        with database.connect() as other:
            outcome = Cutover(replica.spark, given, PIPELINE, settings).run()
            other.execute(INSERT)
        said = "could not be ended" if granted else "cannot be seen"
        assert said in told(outcome, "read-only").message
        assert (outcome.ready, outcome.undo) == (False, None)
        database.execute(INSERT)
    finally:
        database.execute(f"ALTER DATABASE {database.name} OWNER TO CURRENT_USER")
