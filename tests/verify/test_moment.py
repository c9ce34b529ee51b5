"""The moment of the source: what it holds, and for whom it gives way."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from pgtide.errors import Yielded
from pgtide.verify import moment
from pgtide.verify.moment import SourceMoment
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"


def relations(database: Database) -> Mapping[int, str]:
    ((oid,),) = database.execute("SELECT 't'::regclass::oid::bigint")
    return {oid: "public.t"}


def truncating(database: Database) -> threading.Thread:
    thread = threading.Thread(target=database.execute, args=("TRUNCATE t",))
    thread.start()
    wait_until(lambda: database.execute(WAITING), "TRUNCATE to wait")
    return thread


def test_all_sessions_read_the_same_while_others_write_and_wait(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with SourceMoment(database.url, relations(database), 2) as held:
        database.execute("INSERT INTO t VALUES (2)")
        thread = truncating(database)
        for session in (held.keeper, *held.sessions):
            # A session that had not locked the table before would wait behind the TRUNCATE.
            assert session.execute("SELECT id FROM ONLY public.t").fetchall() == [(1,)]
        assert held.moment.before <= held.moment.after
        held.check()
    thread.join(30)
    assert database.execute("SELECT count(*) FROM t") == [(0,)]


def test_it_gives_way(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moment, "YIELD_S", 0)
    monkeypatch.setattr(moment, "LOOK_S", 0)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with SourceMoment(database.url, relations(database)) as held:
        held.check()
        thread = truncating(database)
        with pytest.raises(Yielded):
            held.check()
    thread.join(30)
