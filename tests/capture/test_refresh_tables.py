"""Refreshes of tables with unusual keys, and of tables that change their name, key or parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgtide.capture import faults, refresh_table, windows
from pgtide.errors import ConfigError
from pgtide.log.refreshes import Refresh
from pgtide.snapshot import copying, key_chunks
from pgtide.snapshot.asking import ask
from tests.capture.replayed import replay
from tests.capture.test_refresh import reads, refresh, store_of, wait_for
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until

ROWS = 600


@pytest.fixture
def at_points() -> Iterator[dict[str, Callable[[], None]]]:
    yield faults.at_point
    faults.at_point.clear()


@pytest.fixture
def filled(database: Database, make_captured: MakeCaptured) -> Captured:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, v text)")
    database.execute(f"INSERT INTO t SELECT i, {ROWS} - i, 'v' FROM generate_series(1, {ROWS}) i")
    return make_captured()


def after(times: int, action: Callable[[], None]) -> Callable[[], None]:
    """Acts when it is called for that many times."""
    lock, left = threading.Lock(), [times]

    def act() -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                action()

    return act


KEYS = {
    "float8": ["-Infinity", "-0", "1e-300", "0.1", "1", "Infinity", "NaN"],
    "numeric": ["-1", "0", "0.50", "1.5", "1e30", "NaN"],
    "boolean": ["f", "t"],
    "char(4)": ["", "a", "a b", "zzzz"],
    "text": ["", "Ab", "b", "Ä", "tab\t", "new\nline", "z\\"],
    "positive": ["1", "2", "10", "100"],
    "bytea": ["\\x", "\\x00", "\\x00ff", "\\x5c"],
    "timestamptz": ["-infinity", "2024-01-01 00:00:00+05", "infinity"],
    "interval": ["1 day", "25:00", "1 mon"],
    "uuid": ["00000000-0000-0000-0000-00000000000A", "F0000000-0000-0000-0000-000000000000"],
    "int4range": ["empty", "[1,5)", "[2,)"],
    "text[]": ["{}", "{a}", '{"",NULL}', "{b}"],
    "mood": ["bad", "good", "best"],
}


def test_keys_of_every_kind(database: Database, make_captured: MakeCaptured) -> None:
    database.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    database.execute("CREATE TYPE mood AS ENUM ('bad', 'good', 'best')")
    tables = {f"t{number}": kind for number, kind in enumerate(KEYS)}
    for table, kind in tables.items():
        database.execute(f"CREATE TABLE {table} (k {kind}, n int, PRIMARY KEY (k, n))")
        insert = f"INSERT INTO {table} SELECT k::{kind}, n FROM unnest(%s::text[]) k, "
        database.execute(insert + "unnest('{-1,7}'::int[]) n", [KEYS[kind]])
    captured = make_captured()
    rows = {
        table: sorted(database.execute(f"SELECT format('%s', k), n::text FROM {table}"))
        for table in tables
    }
    for table in tables:
        refresh(captured, f"public.{table}", chunk_rows=1, max_rate=0)
    captured.capture()
    assert rows_read(captured) == rows
    for table, keys in rows.items():
        refresh(captured, f"public.{table}", keys=tuple(keys), chunk_rows=3, replace=True)
    captured.capture()
    assert rows_read(captured) == {table: sorted(2 * keys) for table, keys in rows.items()}
    assert not captured.events("sweep")


def rows_read(captured: Captured) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for event in captured.events("read"):
        found.setdefault(str(event.table), []).append(tuple((event.after or {}).values()))
    return {table: sorted(found[table]) for table in found}


def test_a_table_that_is_renamed_while_a_chunk_waits_for_it(
    filled: Captured, at_points: dict[str, Callable[[], None]]
) -> None:
    """Whoever renames a table has it for himself until he commits."""
    renaming = filled.database.connect(autocommit=False)

    def rename() -> None:
        renaming.execute("ALTER TABLE t RENAME TO u")

    at_points["refresh_before_read"] = after(3, rename)
    request = ask(filled.config, Refresh("public.t", chunk_rows=50))
    with filled.capturing(), renaming:
        with filled.database.connect() as looking:
            wait_until(
                lambda: looking.execute(
                    "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
                ).fetchall(),
                "a chunk to wait",
            )
        renaming.commit()
        wait_for(filled)
    assert store_of(filled).standing(request.id).state == "done"
    assert {event.table for event in filled.events("read")} == {"t", "u"}
    assert sorted({int(row["id"]) for row in reads(filled)}) == list(range(1, ROWS + 1))


def test_another_key_in_the_middle(
    filled: Captured, at_points: dict[str, Callable[[], None]]
) -> None:
    """Chunks are ranges of the key: those of the old one mean nothing any more."""
    statement = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (other)"
    thread = threading.Thread(target=filled.execute, args=[statement])
    at_points["refresh_before_read"] = after(5, thread.start)
    refresh(filled, chunk_rows=50)
    with filled.capturing() as running:
        wait_for(filled)
        thread.join()
        running.wait(flushed(filled.database))
    filled.check_log()
    assert {int(row["id"]) for row in reads(filled)} == set(range(1, ROWS + 1))


def test_a_partition_that_is_dropped_meanwhile(
    database: Database, make_captured: MakeCaptured, at_points: dict[str, Callable[[], None]]
) -> None:
    """The others are read all the same."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for part in range(4):
        bounds = f"FROM ({part * 100}) TO ({part * 100 + 100})"
        database.execute(f"CREATE TABLE p{part} PARTITION OF p FOR VALUES {bounds}")
    database.execute("INSERT INTO p SELECT i, 'v' FROM generate_series(0, 399) i")
    captured = make_captured()

    def drop() -> None:
        database.execute("DROP TABLE p1, p2")

    at_points["refresh_after_low"] = after(2, drop)
    request = refresh(captured, "public.p", replace=True)
    captured.capture()
    standing = store_of(captured).standing(request.id)
    assert standing.state == "done", standing
    assert {int(row["id"]) // 100 for row in reads(captured)} == {0, 3}
    sweeps = {(event.table, (event.payload or {})["refresh"]) for event in captured.events("sweep")}
    dropped = {(table, "drop partition") for table in ("p1", "p2")}
    assert sweeps == {("p0", request.id), ("p3", request.id)} | dropped


def test_schemas_that_swap_their_names_before_it_is_read(
    database: Database, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on the table does not hinder that, and rows are read by its name."""
    for schema in ("a", "b"):
        database.execute(f"CREATE SCHEMA {schema}")
        database.execute(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {schema}.t VALUES (1, '{schema}')")
    captured = make_captured()
    swaps = [[("a", "c"), ("b", "a"), ("c", "b")]]

    def copy_rows(*arguments: Any) -> Any:
        for old, new in swaps.pop() if swaps else ():
            database.execute(f"ALTER SCHEMA {old} RENAME TO {new}")
        return copying.copy_rows(*arguments)

    monkeypatch.setattr(key_chunks, "copy_rows", copy_rows)
    ask(captured.config, Refresh("a.t"))
    captured.capture()
    wait_for(captured)
    assert [row["v"] for row in reads(captured)] == ["a"]


def test_partitions_whose_rows_are_never_sent(
    database: Database, make_captured: MakeCaptured
) -> None:
    """The server writes no WAL of them; that keeps nobody from reading the others."""
    database.execute("CREATE TABLE p (id int, v text) PARTITION BY RANGE (id)")
    sent = "CREATE TABLE p0 PARTITION OF p (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10)"
    database.execute(sent)
    database.execute("CREATE UNLOGGED TABLE p1 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    database.execute("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER far FOREIGN DATA WRAPPER w")
    far = "CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES FROM (20) TO (30) SERVER far"
    database.execute(far)
    database.execute("INSERT INTO p VALUES (1, 'a'), (2, 'b'), (11, 'c')")
    database.execute("CREATE TABLE none (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    captured = make_captured()
    for table in ("public.p", "public.none"):
        ask(captured.config, Refresh(table, replace=True))
    captured.capture()
    wait_for(captured)
    assert sorted(row["id"] for row in reads(captured)) == ["1", "2"]
    assert {event.table for event in captured.events("sweep")} == {"p0", "none"}


def test_a_table_that_is_not_published(database: Database, make_captured: MakeCaptured) -> None:
    """Nobody would tell what becomes of its rows, once they are read."""
    database.execute("CREATE TABLE keyless (v text)")
    captured = make_captured(database, keyless="insert")
    captured.run(
        """CREATE TABLE later (id int PRIMARY KEY);
INSERT INTO later VALUES (1);
ALTER TABLE later ADD COLUMN token uuid DEFAULT gen_random_uuid();
"""
    )
    with pytest.raises(ConfigError, match=r"public\.later is not published"):
        ask(captured.config, Refresh("public.later"))
    captured.capture()
    assert [request.reason for request in store_of(captured).requests()] == ["ddl"]
    assert not reads(captured)


def test_more_changes_than_can_be_remembered(
    filled: Captured, at_points: dict[str, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracking begins anew, and chunks that were read before are read again."""
    monkeypatch.setattr(windows, "MOST_KEYS", 10)
    begun: list[int] = []
    at_points["refresh_after_low"] = lambda: begun.append(1)
    changes = iter(range(1, 10**6))

    def change() -> None:
        n = next(changes)
        if n < 8:
            filled.execute("UPDATE t SET v = %s WHERE id %% 7 = %s", [f"new {n}", n % 7])

    at_points["refresh_after_read"] = change
    refresh(filled, chunk_rows=100)
    with filled.capturing() as running:
        wait_for(filled)
        running.wait(flushed(filled.database))
    assert len(begun) > 1
    filled.check_log()
    found = replay(filled.events(), "t", ("id",))
    assert {k[0]: row["v"] for k, row in found.items()} == dict(
        filled.execute("SELECT id::text, v FROM t")
    )


def test_a_watermark_that_does_not_come_back(
    filled: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_table, "LOST_S", 0.5)
    send, sent = refresh_table.send_watermark, []

    def losing(conn: Any, token: str) -> Any:
        sent.append(token)
        return send(conn, token if sent.count(token) > 1 else "lost")

    monkeypatch.setattr(refresh_table, "send_watermark", losing)
    refresh(filled)
    with filled.capturing() as running:
        wait_until(lambda: sent, "a watermark")
        running.wait(flushed(filled.database))

        def done() -> bool:
            flushed(filled.database)  # so that the log moves on
            return store_of(filled).standing(store_of(filled).requests()[0].id).state == "done"

        wait_until(done, "the refresh", 30)
    assert len(reads(filled)) == ROWS


def test_several_chunks_are_on_their_way(
    filled: Captured, at_points: dict[str, Callable[[], None]]
) -> None:
    """The second is read before the first one is in the log."""
    both = threading.Barrier(2)
    lock, first = threading.Lock(), [1, 1]

    def meet() -> None:
        with lock:
            mine = first and first.pop()
        if mine:
            both.wait(20)

    at_points["refresh_after_high"] = meet
    refresh(filled, chunk_rows=100)
    filled.capture()
    assert len(reads(filled)) == ROWS
