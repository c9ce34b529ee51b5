"""Units that do not go set by set are applied in the source's order, the next ones at once."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.log.refreshes import Refresh, RefreshStore
from pgtide.log.storage import Storage
from pgtide.sinks.postgres.transaction import TargetTransaction
from tests.sinks.postgres.replicas import Replica

SEATS = "CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);\n"
TAKEN = "INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');\n"
SWAP = """UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
"""


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each attempt, whether it goes event by event."""
    tried: list[bool] = []
    attempt = TargetTransaction._attempt

    def noting(self: TargetTransaction, *given: Any, every: bool, **named: Any) -> None:
        tried.append(every)
        attempt(self, *given, every=every, **named)

    monkeypatch.setattr(TargetTransaction, "_attempt", noting)
    return tried


def test_sets_are_not_tried_in_vain_again(replica: Replica, attempts: list[bool]) -> None:
    replica.captured.run(SEATS + TAKEN + "CREATE TYPE mood AS ENUM ('a');\n")
    replica.follow()
    attempts.clear()
    # Each new value can be used only behind its transaction: a unit ends there.
    replica.captured.run(SWAP)
    for value in "bcd":
        replica.captured.run(f"ALTER TYPE mood ADD VALUE '{value}';\n" + SWAP)
    replica.follow()
    replica.check_equal("seats")
    assert attempts[:2] == [False, True]
    assert attempts[2:] == [True] * (len(attempts) - 2)
    assert len(attempts) > 3


def test_tables_of_all_kinds_in_order(replica: Replica, attempts: list[bool]) -> None:
    """Events of all tables are staged by one frame, whatever their keys and columns are."""
    replica.captured.run(
        SEATS
        + """CREATE TABLE parts (region text, id int, note text, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE north PARTITION OF parts FOR VALUES IN ('n');
CREATE TABLE south (note text, gone int, id int NOT NULL, region text NOT NULL);
ALTER TABLE south DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION south FOR VALUES IN ('s');
CREATE TABLE bag (v int, w text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE docs (id int PRIMARY KEY, n int, doc text);
ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE full_docs (n int, id int PRIMARY KEY, doc text);
ALTER TABLE full_docs ALTER doc SET STORAGE EXTERNAL;
ALTER TABLE full_docs REPLICA IDENTITY FULL;
"""
        + TAKEN
    )
    replica.captured.run(
        """INSERT INTO parts VALUES ('n', 1, 'x'), ('s', 1, E'tab\\t'), ('s', 2, NULL);
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (NULL, NULL);
INSERT INTO docs SELECT n, n, repeat('x', 3000) FROM generate_series(1, 3) n;
INSERT INTO full_docs SELECT n, n, repeat('y', 3000) FROM generate_series(1, 3) n;
"""
    )
    replica.follow()
    attempts.clear()
    replica.captured.run(
        SWAP
        + """UPDATE parts SET id = id + 10, region = 'n' WHERE id = 2;
UPDATE parts SET note = 'changed' WHERE region = 's';
DELETE FROM parts WHERE region = 'n' AND id = 1;
UPDATE bag SET w = 'b' WHERE v IS NULL;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE v = 1);
UPDATE docs SET n = -n;
UPDATE docs SET id = id + 100 WHERE id = 3;
UPDATE full_docs SET n = -n;
UPDATE full_docs SET id = id + 100 WHERE id = 3;
ALTER TABLE docs ADD COLUMN more int DEFAULT 7;
UPDATE docs SET n = 5 WHERE id = 1;
"""
    )
    replica.follow()
    assert attempts == [False, True]
    replica.check_equal("seats", "parts", "north", "south", "bag", "docs", "full_docs")


def test_partitions_with_keys_of_their_own(replica: Replica, attempts: list[bool]) -> None:
    """Their root has none: rows of one are found by key, those of the other by all columns."""
    replica.captured.run(
        SEATS
        + """CREATE TABLE parts (region text, id int NOT NULL, n int, doc text)
    PARTITION BY LIST (region);
CREATE TABLE north PARTITION OF parts FOR VALUES IN ('n');
ALTER TABLE north ADD PRIMARY KEY (id);
ALTER TABLE north ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE south PARTITION OF parts FOR VALUES IN ('s');
ALTER TABLE south REPLICA IDENTITY FULL;
"""
        + TAKEN
    )
    replica.captured.run(
        """INSERT INTO parts SELECT 'n', n, n, repeat('x', 3000) FROM generate_series(1, 3) n;
INSERT INTO parts SELECT 's', n + 100, n, 'short' FROM generate_series(1, 3) n;
"""
    )
    replica.follow()
    attempts.clear()
    changes = """UPDATE {0} SET n = 0 WHERE n = 1;
UPDATE {0} SET id = -id WHERE n = 2;
DELETE FROM {0} WHERE n = 3;
"""
    replica.captured.run(SWAP + changes.format("north"))
    replica.captured.run(changes.format("south"))
    replica.follow()
    assert attempts == [False, True]
    replica.check_equal("seats", "parts", "north", "south")


BETWEEN = "ALTER TYPE mood ADD VALUE 'b';\n"
"""It can be used only behind its transaction: a unit ends there."""


def test_sets_are_tried_where_the_order_does_not_do(replica: Replica, attempts: list[bool]) -> None:
    """Rows of one statement that refer to each other go at once, and one by one only in part."""
    replica.captured.run(
        SEATS
        + TAKEN
        + """CREATE TYPE mood AS ENUM ('a');
CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree);
INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2);
"""
    )
    replica.follow()
    attempts.clear()
    replica.captured.run(SWAP)
    replica.captured.run(BETWEEN + "DELETE FROM tree;\n")
    replica.follow()
    assert attempts[:2] == [False, True]
    assert attempts[-2:] == [True, False]
    replica.check_equal("seats", "tree")


def test_large_tables_are_not_looked_through_for_each_event(
    replica: Replica, attempts: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgtide.sinks.postgres.transaction.SMALL_TABLE_BYTES", 8192)
    replica.captured.run(
        SEATS
        + TAKEN
        + """CREATE TYPE mood AS ENUM ('a');
CREATE TABLE bag (v int, w text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n;
"""
    )
    replica.follow()
    attempts.clear()
    replica.captured.run(SWAP)
    replica.captured.run(BETWEEN + "UPDATE bag SET w = 'y' WHERE v = 1;\n")
    replica.follow()
    assert attempts[:2] == [False, True]
    assert attempts[-1] is False
    replica.check_equal("seats", "bag")


@pytest.mark.parametrize(("before", "tried"), [("", [False]), (SWAP, [False, True, True])])
def test_changes_that_are_passed_over_are_counted(
    replica: Replica, attempts: list[bool], before: str, tried: list[bool]
) -> None:
    """Those of rows that a refresh has still to bring: once, whichever way is gone."""
    replica.captured.run(
        SEATS
        + TAKEN
        + """CREATE TYPE mood AS ENUM ('a');
CREATE TABLE docs (id int PRIMARY KEY, n int, doc text);
ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL;
INSERT INTO docs SELECT n, n, repeat('x', 3000) FROM generate_series(1, 4) n;
"""
    )
    replica.follow()
    replica.target.execute("DELETE FROM docs WHERE id < 4")
    attempts.clear()
    replica.captured.run(before + "UPDATE docs SET n = -n WHERE id = 1;\n")
    between = BETWEEN if before else ""
    replica.captured.run(between + "UPDATE docs SET n = -n WHERE id > 1;\n")
    replica.captured.capture()
    ((oid,),) = replica.captured.execute("SELECT 'docs'::regclass::oid")
    RefreshStore(Storage(replica.captured.config.log.path)).add(Refresh("public.docs", oid=oid))
    state = replica.apply()
    assert attempts == tried
    assert state.withheld == {"public.docs": 3}
    assert replica.rows("docs", "id, n") == [(4, -4)]
