"""Refresh: rows read again while everything runs, in their place among the changes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pgtide.capture import refresh_table
from pgtide.errors import ConfigError
from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.postgres.embedded import bundled_bin_dir
from pgtide.snapshot.key_chunks import Chunk, KeyedTable, ReadRows
from tests.capture.replayed import replay
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.fixtures.waiting import wait_until


def store_of(captured: Captured) -> RefreshStore:
    return RefreshStore(Storage(captured.config.log.path, captured.config.log.storage))


def refresh(captured: Captured, table: str = "public.t", **limits: Any) -> Refresh:
    request = Refresh(table, **limits)
    store_of(captured).add(request)
    return request


def wait_for(captured: Captured) -> None:
    """Wait until every refresh that was asked for is done."""
    store = store_of(captured)

    def done() -> bool:
        standings = [store.standing(each.id) for each in store.requests()]
        for standing in standings:
            assert standing.state not in ("failed", "cancelled"), standing
        return all(standing.state == "done" for standing in standings)

    wait_until(done, "the refreshes", 60)


def reads(captured: Captured) -> list[dict[str, Any]]:
    return [dict(event.after or {}) for event in captured.events("read")]


@pytest.fixture
def filled(database: Database, make_captured: MakeCaptured) -> Captured:
    """A table with rows that the log does not have."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, 'old ' || i FROM generate_series(1, 5000) i")
    return make_captured()


def test_all_rows_of_a_table(filled: Captured) -> None:
    request = refresh(filled)
    filled.capture()
    standing = store_of(filled).standing(request.id)
    assert (standing.state, standing.rows, standing.dropped) == ("done", 5000, 0)
    found = reads(filled)
    assert sorted(int(row["id"]) for row in found) == list(range(1, 5001))
    assert {row["v"] for row in found} == {f"old {i}" for i in range(1, 5001)}
    filled.check_log()


def test_wide_rows_are_read_few_at_a_time(
    database: Database, make_captured: MakeCaptured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planned before anybody knew how wide they are is divided, down to one row."""
    monkeypatch.setattr(refresh_table, "MOST_BYTES", 100_000)
    most: list[int] = []
    read = KeyedTable.read

    def measured(self: KeyedTable, chunk: Chunk, most_bytes: int) -> ReadRows:
        found = read(self, chunk, most_bytes)
        most.append(len(found.rows))
        return found

    monkeypatch.setattr(KeyedTable, "read", measured)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute(
        "INSERT INTO t SELECT i, repeat(md5(i::text), 1500) FROM generate_series(1, 200) i"
    )
    captured = make_captured()
    refresh(captured)
    captured.capture()
    assert sorted(int(row["id"]) for row in reads(captured)) == list(range(1, 201))
    assert max(most) <= 2
    captured.check_log()


def test_chunks_follow_the_order_of_the_key(filled: Captured) -> None:
    """Of numbers, not of their texts: the second chunk ends at 200, not at 1089."""
    url, publications = filled.config.source.url.reveal(), (filled.config.source.slot,)
    ((oid,),) = filled.execute("SELECT 't'::regclass::oid::bigint")
    table = KeyedTable(url, publications, oid)
    try:
        assert table.boundary(None, 100) == ("100",)
        assert table.boundary(("100",), 100) == ("200",)
        assert table.boundary(("4950",), 100) is None
    finally:
        table.close()


def test_keys_of_an_extension(database: Database, make_captured: MakeCaptured) -> None:
    """Compared by the operators of their own type, to which no search path leads."""
    database.execute("CREATE EXTENSION vector")
    database.execute("CREATE TABLE t (v vector(2), n int, PRIMARY KEY (v, n))")
    database.execute(
        "INSERT INTO t SELECT format('[%s,1]', i % 7)::vector, i FROM generate_series(1, 100) i"
    )
    captured = make_captured()
    refresh(captured, chunk_rows=9)
    captured.capture()
    assert sorted(int(row["n"]) for row in reads(captured)) == list(range(1, 101))
    refresh(captured, keys=(("[3,1]", "3"), ("[4,1]", "4"), ("[4,1]", "5")))
    captured.capture()
    assert sorted(int(row["n"]) for row in reads(captured))[:4] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"where": "id % 1000 = 0 -- every thousandth"}, [1000, 2000, 3000, 4000, 5000]),
        ({"low": "4998"}, [4998, 4999, 5000]),
        ({"low": "2", "high": "4"}, [2, 3, 4]),
        ({"keys": (("7",), ("4711",), ("9999",))}, [7, 4711]),
    ],
)
def test_some_rows_of_a_table(
    filled: Captured, limits: dict[str, Any], expected: list[int]
) -> None:
    refresh(filled, **limits)
    filled.capture()
    assert sorted(int(row["id"]) for row in reads(filled)) == expected


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"replace": True}, set()),
        ({"replace": True, "low": "4900", "high": "6000"}, {"0", "7000"}),
        ({"replace": True, "keys": (("17",), ("6000",))}, {"0", "7000"}),
        ({}, {"0", "6000", "7000"}),
    ],
)
def test_rows_that_only_a_target_has_are_swept(
    filled: Captured, limits: dict[str, Any], left: set[str]
) -> None:
    refresh(filled, **limits)
    filled.capture()
    found = replay(filled.events(), "t", ("id",), ghosts=["0", "6000", "7000"])
    assert {key for (key,) in found if not 0 < int(key) <= 5000} == left


def test_a_sweep_spares_what_is_changed_meanwhile(filled: Captured) -> None:
    filled.execute("UPDATE t SET v = 'before' WHERE id <= 100")
    filled.capture()
    refresh(filled, replace=True)
    with filled.capturing() as running:
        for i in range(100):
            filled.execute("UPDATE t SET v = %s WHERE id = %s", [f"meanwhile {i}", 50 * i + 1])
        wait_for(filled)
        running.wait(flushed(filled.database))
    source = filled.execute("SELECT id::text, v FROM t")
    found = replay(filled.events(), "t", ("id",))
    assert {key[0]: row["v"] for key, row in found.items()} == dict(source)


def test_everything_is_read_bit_by_bit(database: Database, make_captured: MakeCaptured) -> None:
    """snapshot: incremental."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT i, i::text FROM generate_series(1, 3000) i")
    database.execute("CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)")
    for part in (1, 2):
        database.execute(f"CREATE TABLE p{part} PARTITION OF p FOR VALUES IN ({part})")
    database.execute("INSERT INTO p SELECT i, i % 2 + 1 FROM generate_series(1, 100) i")
    captured = make_captured(snapshot="incremental")
    captured.execute("UPDATE t SET v = 'changed' WHERE id % 2 = 0")
    captured.capture()
    states = {store_of(captured).standing(r.id).state for r in store_of(captured).requests()}
    assert states == {"done"}
    found = replay(captured.events(), "t", ("id",))
    assert {k[0]: row["v"] for k, row in found.items()} == dict(
        captured.execute("SELECT id::text, v FROM t")
    )
    partitions = [replay(captured.events(), name, ("id", "k")) for name in ("p1", "p2")]
    assert [len(rows) for rows in partitions] == [50, 50]
    before = len(reads(captured))
    captured.capture()
    assert len(reads(captured)) == before, "once is enough"


def test_tables_without_a_key_cannot_be_read_bit_by_bit(
    database: Database, make_captured: MakeCaptured
) -> None:
    database.execute("CREATE TABLE k (v text); ALTER TABLE k REPLICA IDENTITY FULL")
    captured = make_captured(snapshot="incremental")
    with pytest.raises(ConfigError, match="without a key"):
        captured.capture()


@pytest.mark.parametrize(
    ("table", "limits", "said"),
    [
        ("public.nowhere", {}, "there is no table"),
        ("public.k", {}, "has no key"),
        ("public.t", {"where": "nonsense >"}, "syntax error"),
        ("public.t", {"keys": (("x",),)}, "invalid text representation"),
    ],
)
def test_a_refresh_that_cannot_be_done_fails_alone(
    filled: Captured, table: str, limits: dict[str, Any], said: str
) -> None:
    filled.execute("CREATE TABLE k (v text)")
    failing = refresh(filled, table, **limits)
    fine = refresh(filled, keys=(("1",),))
    filled.capture()
    standing = store_of(filled).standing(failing.id)
    assert standing.state == "failed"
    assert said in standing.message
    assert store_of(filled).standing(fine.id).state == "done"


def test_pause_and_cancel(filled: Captured) -> None:
    store = store_of(filled)
    paused, cancelled = refresh(filled), refresh(filled)
    store.steer(paused.id, "pause")
    store.steer(cancelled.id, "cancel")
    filled.capture()
    assert store.standing(paused.id).state == "paused"
    assert store.standing(cancelled.id).state == "cancelled"
    assert not reads(filled)
    store.steer(paused.id, "run")
    filled.capture()
    assert store.standing(paused.id).state == "done"
    assert len(reads(filled)) == 5000


def test_a_rate_is_kept(filled: Captured) -> None:
    request = refresh(filled, chunk_rows=1000, max_rate=2500)
    began = time.monotonic()
    filled.capture()
    assert time.monotonic() - began > 1.5, "5000 rows at 2500 a second, but for the first chunk"
    assert store_of(filled).standing(request.id).rows == 5000


def test_rows_are_read_after_ddl_that_rewrites_them(filled: Captured) -> None:
    filled.capture()
    filled.execute("ALTER TABLE t ADD COLUMN u uuid DEFAULT gen_random_uuid()")
    filled.capture()
    found = replay(filled.events(), "t", ("id",))
    assert {key[0]: row["u"] for key, row in found.items()} == dict(
        filled.execute("SELECT id::text, u::text FROM t")
    )
    (request,) = store_of(filled).requests()
    assert (request.reason, request.replace) == ("ddl", False)

    # Where keys may be others, rows under the old ones are swept.
    filled.execute("ALTER TABLE t ALTER v TYPE varchar(20) USING left(v, 20)")
    filled.capture()
    assert not filled.events("sweep")
    filled.execute("ALTER TABLE t ALTER id TYPE bigint USING id + 100000")
    filled.capture()
    found = replay(filled.events(), "t", ("id",))
    assert {key[0] for key in found} == {key for (key,) in filled.execute("SELECT id::text FROM t")}


@pytest.mark.parametrize(
    ("made", "column", "value", "command"),
    [
        ("ENUM ('a', 'b')", "kind", "a", "RENAME VALUE 'a' TO 'c'"),
        ("ENUM ('a', 'b')", "kind[]", "{a,b}", "RENAME VALUE 'a' TO 'c'"),
        ("(x int, y int)", "kind", "(1,2)", "ADD ATTRIBUTE z int"),
        ("(x int, y int)", "kind[]", '{"(1,2)"}', "DROP ATTRIBUTE x"),
    ],
)
def test_rows_are_read_after_a_type_has_changed(
    captured: Captured, made: str, column: str, value: str, command: str
) -> None:
    captured.execute(f"CREATE TYPE kind AS {made}")
    captured.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    captured.execute("CREATE TABLE other (id int PRIMARY KEY)")
    captured.execute("INSERT INTO t VALUES (1, %s)", [value])
    captured.execute("INSERT INTO other VALUES (1)")
    captured.execute(f"ALTER TYPE kind {command}")
    captured.capture()
    found = replay(captured.events(), "t", ("id",))
    assert [(row["v"],) for row in found.values()] == captured.execute("SELECT v::text FROM t")
    assert [request.table for request in store_of(captured).requests()] == ["public.t"]


def test_rows_that_were_deleted_while_nothing_was_told(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured.execute("INSERT INTO t VALUES (1, 'gone'), (2, 'old')")
    captured.execute("ALTER TABLE t SET UNLOGGED")
    captured.capture()
    captured.execute("DELETE FROM t WHERE id = 1; UPDATE t SET v = 'new'")
    captured.execute("ALTER TABLE t SET LOGGED")
    captured.capture()
    found = replay(captured.events(), "t", ("id",))
    assert {key[0]: row["v"] for key, row in found.items()} == {"2": "new"}


@pytest.mark.parametrize("point", ["refresh_after_low:1", "refresh_after_read:3", "after_commit:3"])
def test_killed_in_the_middle(filled: Captured, point: str) -> None:
    request = refresh(filled, chunk_rows=200)
    filled.killed(None, point)
    filled.execute("UPDATE t SET v = 'later' WHERE id % 3 = 0")
    filled.capture()
    assert store_of(filled).standing(request.id).state == "done"
    found = replay(filled.events(), "t", ("id",))
    assert {key[0]: row["v"] for key, row in found.items()} == dict(
        filled.execute("SELECT id::text, v FROM t")
    )
    filled.check_log()


def test_partitions_that_come_and_go(database: Database, make_captured: MakeCaptured) -> None:
    """Neither ATTACH nor DETACH tells of rows: those are read, these are swept."""
    database.execute("CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)")
    database.execute("CREATE TABLE other (id int PRIMARY KEY, v text)")
    captured = make_captured()
    captured.execute("INSERT INTO p VALUES (1, 'one'), (2, 'two')")
    captured.capture()
    captured.execute("ALTER TABLE p DETACH PARTITION p1")
    captured.capture()
    (sweep,) = captured.events("sweep")
    assert (sweep.table, sweep.shape is not None and sweep.shape.root_table) == ("p1", "p")
    own = [event for event in captured.events("read") if event.shape and not event.shape.root_oid]
    assert {(event.after or {})["id"] for event in own} == {"1", "2"}
    captured.execute("INSERT INTO other VALUES (500, 'old')")
    captured.execute("ALTER TABLE p ATTACH PARTITION other FOR VALUES FROM (500) TO (600)")
    captured.capture()
    new = [e.after for e in captured.events("read") if e.shape and e.shape.root_table == "p"]
    assert new == [{"id": "500", "v": "old"}]


def test_partitions_that_are_dropped(captured: Captured) -> None:
    """Their rows are swept: no event tells that they leave the table. With it nothing has to be."""
    captured.run(
        """CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (20);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (30) TO (40);
INSERT INTO p VALUES (1), (11), (31);
"""
    )
    captured.execute("INSERT INTO p VALUES (2); DROP TABLE p1; INSERT INTO p VALUES (32)")
    captured.execute("DROP TABLE p2 CASCADE")
    captured.execute("DROP TABLE p")
    captured.capture()
    sweeps = captured.events("sweep")
    assert [event.table for event in sweeps if event.table != "p2"] == ["p1", "p21"]
    assert all(event.shape is not None and event.shape.root_table == "p" for event in sweeps)
    left = {table: set(replay(captured.events(), table, ("id",))) for table in ("p1", "p21", "p3")}
    assert left == {"p1": set(), "p21": set(), "p3": {("31",), ("32",)}}


def test_a_partition_with_partitions_is_detached(captured: Captured) -> None:
    """The rows that leave are in partitions which the command does not name."""
    captured.run(
        """CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1), (11);
ALTER TABLE p DETACH PARTITION p2;
"""
    )
    captured.capture()
    sweeps = captured.events("sweep")
    assert [event.table for event in sweeps if event.table != "p2"] == ["p21"]
    assert all(event.shape is not None and event.shape.root_table == "p" for event in sweeps)
    own = [event for event in captured.events("read") if event.table == "p21"]
    assert [event.shape and event.shape.root_table for event in own] == ["p2"]


def test_virtual_columns_are_nowhere(make_server: MakeServer, make_captured: MakeCaptured) -> None:
    """The server does not send them, so what is read again does not have them either."""
    database = Database.create(make_server(bundled_bin_dir(18)))
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL)"
    )
    database.execute("INSERT INTO t SELECT generate_series(1, 3)")
    captured = make_captured(database)
    captured.execute("INSERT INTO t VALUES (4)")
    request = refresh(captured)
    captured.capture()
    captured.execute("ALTER TABLE t ADD four int GENERATED ALWAYS AS (id * 4) VIRTUAL")
    again = refresh(captured, keys=(("2",),))
    captured.capture()
    for asked, rows in ((request, 4), (again, 1)):
        standing = store_of(captured).standing(asked.id)
        assert (standing.state, standing.rows) == ("done", rows)
    found = sorted(reads(captured), key=lambda row: int(row["id"]))
    assert found[0] == {"id": "1", "twice": "2"}
    assert len(found) == 5
    assert all(row.keys() == {"id", "twice"} for row in found)
    captured.check_log()


def test_a_table_that_was_renamed_or_dropped_since(captured: Captured) -> None:
    """What DDL asks for means the table, not the name that it had then."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE u (id int PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
INSERT INTO u VALUES (1);
ALTER TABLE t ADD COLUMN token uuid DEFAULT gen_random_uuid();
ALTER TABLE u ADD COLUMN token uuid DEFAULT gen_random_uuid();
ALTER TABLE t RENAME TO renamed;
DROP TABLE u;
"""
    )
    captured.capture()
    wait_for(captured)
    expected = captured.execute("SELECT id::text, token::text FROM renamed ORDER BY 1")
    found = [(event.table, event.after) for event in captured.events("read")]
    assert found == [("renamed", {"id": id, "token": token}) for id, token in expected]
