"""Tables that leave a pipeline's selection and come again: equal to the source, or refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from pgtide.errors import LogGap, TargetError
from pgtide.log import snapshot as snapshots
from pgtide.log.storage import Storage
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn
from tests.sinks.postgres.replicas import PIPELINE, Replica

TABLES = """CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (id int PRIMARY KEY, v text);
INSERT INTO a VALUES (1), (2);
INSERT INTO b VALUES (1), (2), (3);
"""
CHANGES = """INSERT INTO a SELECT max(id) + 1 FROM a;
UPDATE b SET v = 'new' WHERE id = 1;
DELETE FROM b WHERE id = 2;
INSERT INTO b SELECT coalesce(max(id), 0) + 1 FROM b;
"""
ONE = {"tables": ["public.a"]}
BOTH = {"tables": ["public.a", "public.b"]}


def state_file(replica: Replica) -> StateFile:
    return StateFile(Storage(replica.captured.config.log.path), PIPELINE)


def test_a_table_leaves_and_comes_again(replica: Replica) -> None:
    """It goes on where it left, with the DDL of the time between."""
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    before = replica.rows("b")
    replica.captured.run(f"{CHANGES}ALTER TABLE b ADD COLUMN more int DEFAULT 7;\n")
    replica.follow(ONE)
    replica.captured.run("INSERT INTO a SELECT max(id) + 1 FROM a;\nTRUNCATE b;\n" + CHANGES)
    replica.follow(ONE)
    assert replica.rows("b") == before
    replica.captured.run("INSERT INTO b (id) VALUES (10), (11), (12);\n")
    state = replica.follow(BOTH)
    replica.check_equal("a", "b")
    assert (state.parked, state.left) == ({}, {})
    replica.captured.run("DELETE FROM b WHERE id > 10;\n" + CHANGES)
    replica.follow(BOTH)
    replica.check_equal("a", "b")
    assert replica.target.execute("SELECT count(*) FROM pgtide.conflicts") == [(0,)]


@pytest.mark.slow
def test_the_target_is_ahead_of_the_state_when_a_table_leaves(replica: Replica) -> None:
    """As after a crash between the two: what the target has does not come once more."""
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    file = state_file(replica)
    earlier = file.load()
    assert earlier is not None
    replica.captured.run(CHANGES)
    replica.follow(BOTH)
    file.save(earlier)
    replica.apply(ONE)
    replica.captured.run(CHANGES)
    replica.follow(BOTH)
    replica.check_equal("a", "b")


def test_the_target_is_ahead_of_the_state_when_a_table_comes(replica: Replica) -> None:
    """It catches up with the others, not with what the state knows of them."""
    replica.captured.run(TABLES)
    replica.follow(ONE)
    file = state_file(replica)
    earlier = file.load()
    assert earlier is not None
    replica.captured.run(CHANGES)
    replica.follow(ONE)
    file.save(earlier)
    replica.apply(BOTH)
    replica.check_equal("a", "b")


@pytest.mark.slow
def test_a_table_that_was_dropped_there_comes_whole(replica: Replica) -> None:
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    replica.captured.run(CHANGES)
    replica.follow(ONE)
    replica.target.execute("DROP TABLE b")
    replica.follow(BOTH)
    replica.check_equal("a", "b")


@pytest.mark.slow
def test_a_table_leaves_while_it_is_parked(replica: Replica) -> None:
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    replica.target.execute("ALTER TABLE b ADD CONSTRAINT small CHECK (id < 4)")
    replica.captured.run(CHANGES)
    state = replica.follow({**BOTH, "on_error": "park"})
    assert list(state.parked) == ["public.b"]
    assert not replica.apply(ONE).parked
    replica.target.execute("ALTER TABLE b DROP CONSTRAINT small")
    replica.captured.run("DELETE FROM b WHERE id = 4;\nINSERT INTO b VALUES (5);\n")
    replica.follow(BOTH)
    replica.check_equal("a", "b")


def test_rows_of_unknown_origin_are_refused(replica: Replica) -> None:
    """Nothing is replayed over them, however often it is tried."""
    replica.captured.run(TABLES)
    replica.follow(ONE)
    replica.target.execute("CREATE TABLE b AS SELECT 1 AS id, 'own' AS v")
    for _ in range(2):
        with pytest.raises(TargetError, match="has rows at the target") as refused:
            replica.apply(BOTH)
        assert 'DROP TABLE "public"."b"' in refused.value.hint
        replica.apply(ONE)
    assert replica.rows("b") == [("(1,own)",)]
    replica.target.execute("DROP TABLE b")
    replica.follow(BOTH)
    replica.check_equal("a", "b")


@pytest.mark.slow
def test_the_log_has_lost_what_a_table_missed(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    replica.follow(ONE)
    replica.captured.run(CHANGES)
    state = replica.follow(ONE)
    whole = snapshots._read_snapshot

    def kept_in_part(table: Any) -> Any:
        return replace(whole(table), complete_from=Lsn(state.position.lsn - 1))

    monkeypatch.setattr(snapshots, "_read_snapshot", kept_in_part)
    with pytest.raises(LogGap, match="selected later") as refused:
        replica.apply(BOTH)
    assert "pgtide snapshot --schema" in refused.value.hint, "replay is refused for such a target"
    replica.apply(ONE)


def lose_state(replica: Replica) -> None:
    shutil.rmtree(replica.captured.directory / "log" / "pipelines" / PIPELINE)


def test_a_state_is_lost_and_other_tables_are_selected(replica: Replica) -> None:
    """The target knows with which tables it was written, and where others left."""
    replica.captured.run(TABLES)
    replica.follow(ONE)
    replica.captured.run(CHANGES)
    lose_state(replica)
    replica.follow(BOTH)  # b comes from the log's beginning
    replica.check_equal("a", "b")
    replica.apply(ONE)
    replica.captured.run(CHANGES)
    replica.follow(ONE)
    lose_state(replica)
    replica.captured.run("DELETE FROM b WHERE id = 3;\nINSERT INTO b VALUES (70);\n")
    replica.follow(BOTH)  # and goes on where it left
    replica.check_equal("a", "b")
    lose_state(replica)
    replica.captured.run(CHANGES)
    replica.follow(ONE)
    replica.captured.run("INSERT INTO b VALUES (80);\n")
    replica.follow(BOTH)
    replica.check_equal("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["transaction", "table"])
def test_one_of_several_tables_is_refused_when_they_come(
    replica: Replica, consistency: str
) -> None:
    """What the others have got already does not come once more."""
    replica.both("CREATE TABLE a (id int PRIMARY KEY, v text);\n")
    replica.both("CREATE TABLE b (id int PRIMARY KEY, v text);\nCREATE TABLE bag (n int);\n")
    replica.captured.run("ALTER TABLE bag REPLICA IDENTITY FULL;\nINSERT INTO a VALUES (1);\n")
    replica.captured.run("INSERT INTO b VALUES (1), (2);\nINSERT INTO bag VALUES (1), (1);\n")
    sink: dict[str, Any] = {"ddl": [], "consistency": consistency}
    replica.follow(ONE, **sink)
    replica.target.execute("ALTER TABLE b ADD CONSTRAINT small CHECK (id < 2)")
    every = {"tables": ["public.*"], "on_error": "park"}
    assert "public.b" in replica.apply(every, **sink).parked
    replica.captured.run("INSERT INTO bag VALUES (1);\nINSERT INTO b VALUES (3);\n")
    replica.follow(every, **sink)
    replica.target.execute("ALTER TABLE b DROP CONSTRAINT small")
    replica.resume()
    assert not replica.follow(every, **sink).parked
    replica.check_equal("a", "b", "bag")


@pytest.mark.slow
def test_the_log_was_cut_when_the_state_is_lost(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the target has need not be in the log."""
    replica.captured.run(TABLES)
    state = replica.follow(BOTH)
    lose_state(replica)
    replica.captured.run(CHANGES)
    whole = snapshots._read_snapshot

    def kept_in_part(table: Any) -> Any:
        return replace(whole(table), complete_from=Lsn(state.position.lsn - 1))

    monkeypatch.setattr(snapshots, "_read_snapshot", kept_in_part)
    replica.follow(BOTH)
    replica.check_equal("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["TRUNCATE b", "DROP TABLE b; CREATE TABLE b (id int, v text)"])
def test_a_table_is_emptied_while_it_is_left_out(replica: Replica, how: str) -> None:
    """Only inserts follow, which would not meet what is missing: it comes whole, or not at all."""
    replica.captured.run(TABLES)
    replica.follow(BOTH)
    replica.follow(ONE)
    replica.target.execute(how)
    replica.captured.run("INSERT INTO b VALUES (6);\n")
    with pytest.raises(TargetError, match=r"CREATE TABLE at .* fails at the target"):
        replica.follow(BOTH)
    replica.target.execute("DROP TABLE b")
    replica.follow(BOTH)
    replica.check_equal("a", "b")
