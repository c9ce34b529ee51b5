"""``consistency: table``: tables, and ranges of a table's keys, in transactions of their own."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.sinks.postgres import key_ranges
from pgtide.sinks.postgres.key_ranges import RangedTransaction
from pgtide.sinks.postgres.side_by_side import SideBySide
from tests.cli.test_run import START_S, Running
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.sinks.postgres.replicas import PIPELINE, Replica

RANGES = 'SELECT "table", range FROM pgtide.ranges ORDER BY 1, 2'


@pytest.fixture(autouse=True)
def every_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "RANGED_ROWS", 1)


@pytest.fixture
def ranged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranges that were begun."""
    begun: list[int] = []
    run = RangedTransaction._range

    def noting(self: RangedTransaction, number: int, *arguments: object) -> None:
        begun.append(number)
        run(self, number, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RangedTransaction, "_range", noting)
    return begun


def lose(monkeypatch: pytest.MonkeyPatch, *lost: int) -> None:
    """Have some ranges not come to their end, as when the process dies between them."""
    run = RangedTransaction._range

    def losing(self: RangedTransaction, number: int, *arguments: object) -> None:
        if number in lost:
            raise TargetUnavailable("gone")
        run(self, number, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RangedTransaction, "_range", losing)


def prepare(replica: Replica) -> None:
    replica.captured.run(
        """CREATE TABLE t (id int, part text, v int, doc text, PRIMARY KEY (part, id));
CREATE TABLE u (id uuid PRIMARY KEY, at timestamptz);
"""
    )
    replica.follow(consistency="table")
    replica.captured.run(
        "INSERT INTO t SELECT n, 'p' || n % 3, n, 'd' FROM generate_series(1, 400) n;\n"
        "INSERT INTO u SELECT md5(n::text)::uuid, now() FROM generate_series(1, 50) n;\n"
    )
    replica.follow(consistency="table")


def change(replica: Replica) -> None:
    replica.captured.run(
        """INSERT INTO t SELECT n, 'p1', n, 'new' FROM generate_series(1000, 1100) n;
UPDATE t SET v = -v WHERE id % 2 = 0;
DELETE FROM t WHERE id % 5 = 0;
INSERT INTO t SELECT n, 'p' || n % 3, n, 'back' FROM generate_series(5, 20, 5) n;
"""
    )


def test_ranges_of_keys(replica: Replica, ranged: list[int]) -> None:
    prepare(replica)
    assert sorted(ranged) == [0, 0, 1, 1, 2, 2, 3, 3]
    replica.check_equal("t", "u")
    change(replica)
    replica.follow(consistency="table")
    assert len(ranged) == 12
    replica.check_equal("t", "u")
    assert replica.target.execute(RANGES) == []


@pytest.mark.slow
def test_what_is_not_parted(replica: Replica, ranged: list[int]) -> None:
    """Keys that change, values that change hands, keys with two texts, rows that point at rows."""
    replica.captured.run(
        """CREATE TABLE moved (id int PRIMARY KEY);
CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);
CREATE TABLE scaled (id numeric PRIMARY KEY, v int);
CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree);
CREATE TABLE bag (v int);
ALTER TABLE bag REPLICA IDENTITY FULL;
"""
    )
    replica.follow(consistency="table")
    replica.captured.run(
        """INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');
INSERT INTO scaled VALUES (1.0, 1), (2.00, 2);
INSERT INTO tree SELECT n, nullif(n - 1, 0) FROM generate_series(1, 9) n;
INSERT INTO bag SELECT 1 FROM generate_series(1, 9);
"""
    )
    replica.follow(consistency="table")
    assert ranged == []
    replica.captured.run("INSERT INTO moved SELECT generate_series(1, 30);\n")
    replica.follow(consistency="table")
    ranged.clear()
    replica.captured.run(
        """UPDATE moved SET id = id + 100;
UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
DELETE FROM scaled WHERE id = 1;
INSERT INTO scaled VALUES (1.000, 3);
"""
    )
    replica.follow(consistency="table")
    assert ranged == []
    replica.check_equal("moved", "seats", "scaled", "tree", "bag")


@pytest.mark.parametrize(
    "then",
    ["other batches", *(pytest.param(t, marks=pytest.mark.slow) for t in ("again", "together"))],
)
def test_a_crash_between_ranges(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Those that were done are not done again: with on_conflict: error that would show."""
    prepare(replica)
    change(replica)
    with monkeypatch.context() as patched:
        lose(patched, 1, 3)
        with pytest.raises(TargetUnavailable):
            replica.follow(consistency="table")
    assert replica.target.execute(RANGES) == [("public.t", 0), ("public.t", 2)]
    if then == "other batches":  # and a command among what follows
        shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)
    replica.captured.run("UPDATE t SET doc = 'later' WHERE id < 50;\nDELETE FROM u;\n")
    replica.captured.run("ALTER TABLE t ADD COLUMN w int;\nUPDATE t SET w = 1 WHERE id < 9;\n")
    replica.follow(consistency="transaction" if then == "together" else "table")
    replica.check_equal("t", "u")
    assert replica.target.execute(RANGES) == []


def test_a_crash_between_tables(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without a key that is ahead has nothing twice, be a command in the next batch."""
    replica.captured.run("CREATE TABLE bag (v int);\nALTER TABLE bag REPLICA IDENTITY FULL;\n")
    prepare(replica)
    replica.captured.run("INSERT INTO bag VALUES (1), (1);\nUPDATE u SET at = now();\n")
    one = SideBySide._one

    def losing(self: SideBySide, unit: object, name: str, scope: str) -> None:
        if name != "public.bag":
            raise TargetUnavailable("gone")
        one(self, unit, name, scope)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(SideBySide, "_one", losing)
        with pytest.raises(TargetUnavailable):
            replica.follow(consistency="table")
    assert replica.rows("bag") == [("(1)",), ("(1)",)]
    shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)
    replica.captured.run("CREATE TABLE other (id int PRIMARY KEY);\nINSERT INTO bag VALUES (2);\n")
    replica.follow(consistency="table")
    replica.check_equal("t", "u", "bag", "other")


@pytest.mark.slow
def test_conflicts_and_refusals(replica: Replica) -> None:
    """A range that does not go well is done in the source's order, the others stay done."""
    prepare(replica)
    replica.target.execute("INSERT INTO t VALUES (1001, 'p1', 0, 'mine')")
    change(replica)
    with pytest.raises(TargetError, match="a row that was inserted is there already") as refused:
        replica.follow(consistency="table")
    assert 'key {"id": "1001", "part": "p1"}' in refused.value.detail
    assert len(replica.target.execute(RANGES)) == 3
    replica.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (v < 1050) NOT VALID")
    park = {"on_error": "park"}
    state = replica.follow(park, consistency="table", on_conflict="apply")
    assert list(state.parked) == ["public.t"]
    replica.captured.run("UPDATE t SET doc = 'later' WHERE id < 50;\nDELETE FROM u;\n")
    replica.follow(park, consistency="table")
    replica.check_equal("u")
    replica.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    replica.resume()
    assert not replica.follow(park, consistency="table", on_conflict="apply").parked
    replica.check_equal("t", "u")
    assert replica.target.execute(RANGES) == []
    noted = replica.target.execute("SELECT kind, key->>'id' FROM pgtide.conflicts")
    assert noted == [("insert_exists", "1001")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9_between_ranges(captured: Captured, target: Database) -> None:
    """One range waits for a row that somebody has locked, the others are done: now it dies."""
    running = Running(
        captured,
        replica={"sink": {"type": "postgres", "url": target.url, "consistency": "table"}},
    )
    captured.run("CREATE TABLE t (id int PRIMARY KEY, v int);\n")
    captured.run("INSERT INTO t SELECT n, n FROM generate_series(1, 60000) n;\n")
    assert running.finish("run", "--until-current", "--pipeline", PIPELINE) == 0, running.said()
    captured.run(
        "UPDATE t SET v = -v WHERE id < 40000;\nDELETE FROM t WHERE id > 50000;\n"
        "INSERT INTO t SELECT n, n FROM generate_series(70000, 80000) n;\n"
    )
    captured.capture()
    with target.connect(autocommit=False) as locking:
        locking.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")
        process = running.start("run", "--pipeline", PIPELINE)
        try:
            wait_until(lambda: len(target.execute(RANGES)) == 3, "three ranges", START_S)
        finally:
            process.kill()
            process.wait()
    assert running.finish("run", "--until-current", "--pipeline", PIPELINE) == 0, running.said()
    query = "SELECT count(*), sum(id), sum(v) FROM t"
    assert target.execute(query) == captured.execute(query)
    assert target.execute(RANGES) == []


@pytest.mark.slow
@pytest.mark.parametrize("held", ["t", "u"])
def test_tables_do_not_wait_for_each_other(replica: Replica, held: str) -> None:
    prepare(replica)
    other = {"t": "u", "u": "t"}[held]
    replica.captured.run("DELETE FROM t WHERE id < 10;\nDELETE FROM u;\n")
    with ThreadPoolExecutor(1) as pool, replica.target.connect(autocommit=False) as connection:
        connection.execute(f"LOCK TABLE {held} IN SHARE MODE".encode())
        before = replica.rows(held)
        following = pool.submit(replica.follow, consistency="table")
        query = f"SELECT t::text FROM {other} t ORDER BY 1"
        wanted = replica.captured.execute(query)
        wait_until(lambda: replica.target.execute(query) == wanted, "the other table")
        assert replica.rows(held) == before
        connection.rollback()
        following.result()
    replica.check_equal("t", "u")


@pytest.mark.slow
def test_ranges_do_not_wait_for_each_other(replica: Replica, ranged: list[int]) -> None:
    prepare(replica)
    replica.captured.run("UPDATE t SET v = -v;\n")
    with ThreadPoolExecutor(1) as pool, replica.target.connect(autocommit=False) as connection:
        connection.execute("SELECT FROM t WHERE id = 7 FOR UPDATE")
        ranged.clear()
        following = pool.submit(replica.follow, consistency="table")
        query = "SELECT count(*) FROM t WHERE v < 0"
        # Nobody sees the fourth range, with that row; the other three are there.
        wait_until(lambda: len(replica.target.execute(RANGES)) == 3, "three ranges of four")
        assert 200 < replica.target.execute(query)[0][0] < 400
        connection.rollback()
        following.result()
    assert sorted(ranged) == [0, 1, 2, 3]
    replica.check_equal("t", "u")
