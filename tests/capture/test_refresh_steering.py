"""Refreshes that are paused, given up or slow, and what they do to the source meanwhile."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgtide.capture import refresh_service
from pgtide.config import Config
from pgtide.errors import ConfigError
from pgtide.log.refreshes import Refresh
from pgtide.snapshot.asking import ask
from pgtide.snapshot.key_chunks import KeyedTable
from tests.capture.test_refresh import reads, refresh, store_of
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

ROWS = 3000


@pytest.fixture
def filled(database: Database, make_captured: MakeCaptured) -> Captured:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(f"INSERT INTO t SELECT i, 'old ' || i FROM generate_series(1, {ROWS}) i")
    return make_captured()


def test_paused_and_given_up_in_the_middle(filled: Captured) -> None:
    """It goes on where it was, in another capture; what is given up is not taken up again."""
    store = store_of(filled)
    request = refresh(filled, chunk_rows=50, max_rate=500)
    with filled.capturing() as running:
        wait_until(lambda: store.standing(request.id).rows > 0, "some rows")
        # Slow as it is, it holds back neither the stream nor the slot, and no transaction is open.
        filled.execute("INSERT INTO t VALUES (-1, 'meanwhile')")
        place = flushed(filled.database)
        running.wait(place)
        wait_until(lambda: filled.confirmed() >= place, "the slot")
        assert store.standing(request.id).state == "running"
        old = "SELECT xact_start FROM pg_stat_activity WHERE application_name = 'pgtide refresh'"
        assert not filled.execute(old + " AND now() - xact_start > interval '1 s'")
        store.steer(request.id, "pause")
        wait_until(lambda: store.standing(request.id).state == "paused", "the pause")
    paused = store.standing(request.id)
    assert 0 < paused.rows < ROWS
    assert paused.chunks >= paused.rows // 50
    store.steer(request.id, "run")
    filled.execute("UPDATE t SET v = 'later' WHERE id % 100 = 0")
    with filled.capturing():
        wait_until(lambda: store.standing(request.id).rows > paused.rows, "more rows")
        store.steer(request.id, "cancel")
        wait_until(lambda: store.standing(request.id).state == "cancelled", "the end")
    ids = [int(row["id"]) for row in reads(filled)]
    assert len(ids) < ROWS
    assert len(ids) - len(set(ids)) <= 8 * 50, "what was under way is read twice, no more"
    with pytest.raises(ConfigError, match="cancelled already"):
        store.steer(request.id, "run")


def test_at_no_other_time(filled: Captured) -> None:
    """A refresh waits for its time of day, also one that was begun; the stream does not."""
    now = datetime.now(UTC)

    def within(begin: int, end: int) -> Config:
        window = "-".join(f"{now + timedelta(hours=hours):%H:%M}" for hours in (begin, end))
        return Config.model_validate({**filled.settings, "history": {"window": window}})

    request = refresh(filled, chunk_rows=50, max_rate=0)
    filled.killed(None, "refresh_after_read:20")
    begun = len(reads(filled))
    filled.execute("INSERT INTO t VALUES (-1, 'meanwhile')")
    filled.capture(config=within(2, 4))
    assert len(reads(filled)) == begun
    assert filled.changes() == [("insert", None, {"id": "-1", "v": "meanwhile"})]
    filled.capture(config=within(-2, 2))
    assert store_of(filled).standing(request.id).state == "done"


def test_killed_late_it_goes_on_late(filled: Captured) -> None:
    request = refresh(filled, chunk_rows=50, max_rate=0)
    filled.killed(None, "refresh_after_read:45", capture__refresh_service__SAVE_INTERVAL_S=0)
    filled.capture()
    assert store_of(filled).standing(request.id).state == "done"
    ids = [int(row["id"]) for row in reads(filled)]
    assert set(ids) == set(range(1, ROWS + 1))
    assert len(ids) < ROWS * 1.5, "what is in the log is not read again"


def test_a_role_that_may_only_read(database: Database, make_captured: MakeCaptured) -> None:
    """SELECT is needed, and nothing is written; rows that a policy hides are an error."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    url = database.create_role("LOGIN REPLICATION")
    role = database.roles[-1]
    captured = make_captured(database, url=url, admin_url=database.url)
    database.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    refused = refresh(captured)
    captured.capture()
    assert "GRANT SELECT" in store_of(captured).standing(refused.id).message.upper()
    database.execute(f"GRANT SELECT ON t TO {role}")
    fine = refresh(captured)
    captured.capture()
    assert store_of(captured).standing(fine.id).state == "done"
    assert len(reads(captured)) == 2
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id = 1)")
    hidden = refresh(captured)
    captured.capture()
    standing = store_of(captured).standing(hidden.id)
    assert (standing.state, "BYPASSRLS" in standing.message) == ("failed", True)
    assert len(reads(captured)) == 2


def test_settings_of_all_refreshes(filled: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows a chunk has, unless the request says so, and how many are read at once."""
    opened: list[int] = []

    class Counted(KeyedTable):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(1)

    monkeypatch.setattr(refresh_service, "KeyedTable", Counted)
    history = {"chunk_rows": ROWS // 4, "parallelism": 3}
    config = Config.model_validate({**filled.settings, "history": history})
    requests = [ask(config, Refresh("public.t", chunk_rows=rows)) for rows in (None, ROWS // 2)]
    filled.capture(config=config)
    chunks = [store_of(filled).standing(request.id).chunks for request in requests]
    assert chunks[0] > chunks[1] >= 2
    assert len(opened) == 2 * (1 + 3), "one plans, the others read"


def test_values_of_rows_are_not_told(filled: Captured, caplog: pytest.LogCaptureFixture) -> None:
    """A condition that cannot be computed of some row: Postgres's own message quotes it."""
    request = refresh(filled, where="v::int > 0")
    filled.capture()
    standing = store_of(filled).standing(request.id)
    assert standing.state == "failed"
    assert "22P02, invalid text representation" in standing.message
    assert "old 1" not in standing.message + caplog.text


def test_a_condition_is_nothing_but_one(filled: Captured) -> None:
    """It cannot end the query that it is in, nor write through functions that it calls."""
    filled.execute("CREATE SEQUENCE s")
    for text in (
        "true); DELETE FROM public.t; SELECT (1",
        "true; DELETE FROM public.t",
        "false) OR (true",
        "true ORDER BY id",
        "",
    ):
        with pytest.raises(ConfigError, match="not understood"):
            ask(filled.config, Refresh("public.t", where=text))
    request = ask(filled.config, Refresh("public.t", where="nextval('public.s') > 0"))
    filled.capture()
    standing = store_of(filled).standing(request.id)
    assert (standing.state, "read-only" in standing.message) == ("failed", True)
    assert filled.execute("SELECT is_called, (SELECT count(*) FROM t) FROM s") == [(False, ROWS)]


KEY = "0000000a-0000-0000-0000-00000000000b"


def test_keys_and_ranges_are_taken_as_rows_have_them(
    database: Database, make_captured: MakeCaptured
) -> None:
    """One value has several texts, and what is swept is told by text."""
    database.execute("CREATE TABLE t (id uuid, at timestamptz, PRIMARY KEY (id, at))")
    database.execute("CREATE TABLE days (at timestamptz PRIMARY KEY)")
    database.execute("""CREATE TYPE "100%s" AS ENUM ('a', '%s')""")
    database.execute('CREATE TABLE odd (k "100%s" PRIMARY KEY)')
    captured = make_captured()
    given = ((KEY.upper(), "2024-01-01"), (f"{{{KEY}}}", "2024-01-01 02:00+02"))
    made = ask(captured.config, Refresh("public.t", keys=given, replace=True))
    assert made.keys == ((KEY, "2024-01-01 00:00:00+00"),)
    captured.capture()
    (sweep,) = captured.events("sweep")
    assert isinstance(sweep.payload, dict)
    assert sweep.payload["keys"] == [list(made.keys[0])]
    wanted = Refresh("public.days", low="2024-01-01", high="2024-02-01 01:00+01", replace=True)
    made = ask(captured.config, wanted)
    assert (made.low, made.high) == ("2024-01-01 00:00:00+00", "2024-02-01 00:00:00+00")
    made = ask(captured.config, Refresh("public.odd", keys=(("%s",), ("a",))))
    assert made.keys == (("%s",), ("a",))
    for wrong, said in (
        (Refresh("public.t", keys=(*given, (KEY, "now"), (KEY, "x"), (KEY, "now"))), "key 4 is"),
        (Refresh("public.t", keys=(*given, (KEY,))), "key 3 is"),
        (dataclasses.replace(wanted, high="x"), "the high end of the range is"),
    ):
        with pytest.raises(ConfigError, match=said):
            ask(captured.config, wrong)
