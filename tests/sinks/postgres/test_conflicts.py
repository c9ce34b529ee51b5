"""Rows of the target that are not as the source's changes say, and rows that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgtide.cli import run_command as pgtide
from pgtide.errors import TargetError
from tests.sinks.postgres.replicas import PIPELINE, Replica
from tests.snapshot.taking import take


def prepare(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v text);\n")
    replica.captured.run("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 5) n;\n")
    replica.follow()
    replica.target.execute("DELETE FROM t WHERE id IN (1, 2)")
    replica.target.execute("INSERT INTO t VALUES (7, 'mine')")
    replica.captured.run("UPDATE t SET v = 'new' WHERE id IN (1, 3);\n")
    replica.captured.run("DELETE FROM t WHERE id = 2;\nINSERT INTO t VALUES (7, 'theirs');\n")


def test_a_conflict_stops_with_its_key(replica: Replica) -> None:
    prepare(replica)
    with pytest.raises(TargetError, match="a row that was changed is not there") as refused:
        replica.follow()
    assert 'public.t, key {"id": "1"}' in refused.value.detail
    assert replica.rows("t", "id, v")[1] == (4, "v"), "nothing of the batch is there"
    replica.target.execute("INSERT INTO t VALUES (1, 'back'), (2, 'back')")
    replica.target.execute("DELETE FROM t WHERE id = 7")
    replica.follow()
    replica.check_equal("t")


@pytest.mark.parametrize("way", ["apply", pytest.param("keep", marks=pytest.mark.slow)])
def test_conflicts_are_listed(replica: Replica, way: str) -> None:
    prepare(replica)
    replica.follow(on_conflict=way)
    expected = {"apply": [(1, "new"), (3, "new"), (7, "theirs")], "keep": [(3, "new"), (7, "mine")]}
    found = [row for row in replica.rows("t", "id, v") if row[1] != "v"]
    assert found == expected[way]
    noted = replica.target.execute(
        'SELECT pipeline, "table", kind, resolution, key FROM pgtide.conflicts ORDER BY id'
    )
    assert noted == [
        (PIPELINE, "t", "update_missing", way, {"id": "1"}),
        (PIPELINE, "t", "delete_missing", way, {"id": "2"}),
        (PIPELINE, "t", "insert_exists", way, {"id": "7"}),
    ]


def test_a_missing_row_whose_new_key_is_taken(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v text);\n")
    replica.captured.run("INSERT INTO t VALUES (1, 'one'), (2, 'two');\n")
    replica.follow()
    replica.target.execute("DELETE FROM t WHERE id = 1")
    replica.target.execute("INSERT INTO t VALUES (8, 'mine')")
    replica.captured.run("UPDATE t SET id = 8, v = 'moved' WHERE id = 1;\n")
    replica.follow(on_conflict="apply")
    replica.check_equal("t")
    noted = replica.target.execute("SELECT kind, key FROM pgtide.conflicts")
    assert noted == [("update_missing", {"id": "8"})]


@pytest.mark.slow
def test_status_counts_what_was_not_taken(
    replica: Replica, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conflicts by table and DDL by reason; not DDL that a parked table will have later."""
    file = tmp_path / "pgtide.json"
    settings = replica.captured.settings
    sink = {"type": "postgres", "url": replica.target.url}
    file.write_text(json.dumps({**settings, "pipelines": {PIPELINE: {"sink": sink}}}, default=str))

    def status(*options: str) -> str:
        pgtide(["-c", str(file), *options, "status"])
        return capsys.readouterr().out

    def target() -> dict[str, Any]:
        (pipeline,) = json.loads(status("--json"))["pipelines"]
        found: dict[str, Any] = pipeline["target"]
        return found

    prepare(replica)
    assert target() == {"conflicts": {}, "left_out": {}}
    replica.captured.run("CREATE INDEX i ON t (v);\n")
    replica.captured.run("CREATE TABLE IF NOT EXISTS t (id int);\n")
    for _ in range(2):
        replica.follow(on_conflict="keep", ddl=["*", "!index"])
        found = target()
        assert found["conflicts"] == {"public.t": 3}
        assert found["left_out"] == {
            "it did nothing (IF EXISTS, IF NOT EXISTS)": 1,
            "kind index is not selected": 1,
        }
    text = status()
    assert "! pipeline replica: 3 conflicts in public.t, listed in pgtide.conflicts" in text
    assert "DDL left out: 1 (it did nothing (IF EXISTS, IF NOT EXISTS)), 1 (kind index" in text
    replica.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (id < 100)")
    replica.captured.run("INSERT INTO t VALUES (100, '');\nALTER TABLE t ADD COLUMN w int;\n")
    assert replica.follow({"on_error": "park"}).parked
    assert sum(target()["left_out"].values()) == 2
    file.write_text(file.read_text().replace(replica.target.name, "nowhere"))
    assert "nowhere" in target()["error"]["detail"]
    assert "! pipeline replica: the target of pipeline replica" in status()


def test_rows_that_the_key_does_not_tell_apart(replica: Replica) -> None:
    """Partitions with keys of their own: a change of one row is none of both."""
    replica.both(
        "CREATE TABLE parts (region text, id int NOT NULL, n int) PARTITION BY LIST (region);\n"
        "CREATE TABLE north PARTITION OF parts FOR VALUES IN ('n');\n"
        "CREATE TABLE south PARTITION OF parts FOR VALUES IN ('s');\n"
        "ALTER TABLE north ADD PRIMARY KEY (id);\n"
        "ALTER TABLE south ADD PRIMARY KEY (id);\n"
    )
    rows = "INSERT INTO parts VALUES ('n', 3, 3), ('s', 3, 3), ('s', 4, 4)"
    replica.captured.execute(rows)
    take(replica.captured, replica.spark)
    replica.follow(ddl=[])
    replica.check_equal("north", "south")
    replica.captured.run("UPDATE south SET n = 5 WHERE id = 4;\nDELETE FROM north WHERE id = 3;\n")
    with pytest.raises(TargetError, match="several rows have the key") as refused:
        replica.follow(ddl=[], on_conflict="apply")
    assert 'public.parts, key {"id": "3"}' in refused.value.detail
    assert len(replica.rows("parts")) == 3, "nothing of the batch is there"


def test_a_refused_table_is_parked(replica: Replica) -> None:
    """A constraint that only the target has: the others go on, and it comes back."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v int);\n")
    replica.captured.run("CREATE TABLE u (id int PRIMARY KEY, v int);\n")
    replica.follow()
    replica.target.execute("ALTER TABLE t ADD CONSTRAINT small CHECK (v < 10)")
    replica.captured.run(
        "INSERT INTO t VALUES (1, 5), (2, 987654);\nINSERT INTO u VALUES (1, 50);\n"
    )
    with pytest.raises(TargetError, match="refuses a row by constraint small") as refused:
        replica.follow()
    assert 'key {"id": "2"}' in refused.value.detail
    assert "987654" not in refused.value.detail
    state = replica.follow({"on_error": "park"})
    assert list(state.parked) == ["public.t"]
    replica.check_equal("u")
    assert replica.rows("t") == []
    replica.captured.run("UPDATE t SET v = 6 WHERE id = 1;\nALTER TABLE t ADD COLUMN w int;\n")
    replica.captured.run("INSERT INTO t VALUES (3, 3, 3);\nINSERT INTO u VALUES (2, 2);\n")
    state = replica.follow({"on_error": "park"})
    replica.check_equal("u")
    assert list(state.parked) == ["public.t"]
    replica.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    replica.resume()
    state = replica.follow({"on_error": "park"})
    assert not state.parked
    replica.check_equal("t", "u")


@pytest.mark.slow
def test_a_target_that_does_not_keep_keys_apart(replica: Replica) -> None:
    """No index tells that a row is there already: it is looked for."""
    replica.both("CREATE TABLE t (id int PRIMARY KEY, v text);\n")
    replica.target.execute("ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (2, 'mine')")
    replica.captured.run("INSERT INTO t VALUES (1, 'a'), (2, 'b');\n")
    with pytest.raises(TargetError, match="a row that was inserted is there already"):
        replica.follow(ddl=[])
    replica.follow(ddl=[], on_conflict="apply")
    replica.check_equal("t")


@pytest.mark.slow
def test_a_row_that_is_there_gets_the_number_of_the_other(replica: Replica) -> None:
    """Of an identity that nobody may update."""
    replica.captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY);\n"
    )
    replica.follow()
    replica.target.execute("INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1, 99)")
    replica.captured.run("INSERT INTO t VALUES (1);\n")
    replica.follow(on_conflict="apply")
    replica.check_equal("t")


@pytest.mark.slow
def test_a_table_that_only_grows(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (v int);\nALTER TABLE t REPLICA IDENTITY FULL;\n")
    replica.captured.run("INSERT INTO t VALUES (1), (1);\n")
    replica.follow(keyless="append")
    replica.check_equal("t")
    replica.captured.run("DELETE FROM t;\n")
    with pytest.raises(TargetError, match=r"rows of public\.t were changed or deleted"):
        replica.follow(keyless="append")
    replica.follow()
    replica.check_equal("t")
