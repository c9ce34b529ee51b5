"""A target that follows the source: rows, keys, values that were not sent, order."""

from __future__ import annotations

from tests.sinks.postgres.replicas import Replica


def test_rows_follow(replica: Replica) -> None:
    """Inserts, updates, deletes, key changes, TOAST, tables without a key; twice."""
    replica.captured.run(
        """CREATE TABLE parents (id int PRIMARY KEY, name text UNIQUE);
CREATE TABLE children (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent int NOT NULL REFERENCES parents ON DELETE CASCADE, doc text,
    double int GENERATED ALWAYS AS (parent * 2) STORED);
ALTER TABLE children ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE bag (a int, b text, c json);
ALTER TABLE bag REPLICA IDENTITY FULL;
"""
    )
    replica.captured.run(
        """INSERT INTO parents SELECT n, 'name ' || n FROM generate_series(1, 50) n;
INSERT INTO children (parent, doc) SELECT n, repeat('x', 3000) FROM generate_series(1, 50) n;
INSERT INTO bag SELECT n % 3, E'tab\\tback\\\\slash\\nline', '{"a": 1}' FROM generate_series(1, 9) n;
INSERT INTO bag VALUES (NULL, '', NULL);
"""
    )
    replica.follow()
    replica.check_equal("parents", "children", "bag")
    replica.captured.run(
        """UPDATE parents SET name = 'other ' || id WHERE id < 10;
UPDATE children SET parent = 11 WHERE id = 1;
UPDATE parents SET id = id + 100 WHERE id > 40 AND NOT EXISTS
    (SELECT FROM children WHERE parent = parents.id);
DELETE FROM parents WHERE id = 1;
DELETE FROM children WHERE id = 20;
DELETE FROM bag WHERE a IS NULL;
UPDATE bag SET b = 'changed' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1);
INSERT INTO children (parent, doc) VALUES (2, NULL);
"""
    )
    replica.follow()
    replica.check_equal("parents", "children", "bag")


def test_unique_values_change_hands(replica: Replica) -> None:
    """Neither writing nor deleting first would do: it is done in the source's order."""
    replica.captured.run(
        """CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);
INSERT INTO seats VALUES (1, 'ann'), (2, 'bob'), (3, 'cid');
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
DELETE FROM seats WHERE id = 3;
INSERT INTO seats VALUES (4, 'cid');
"""
    )
    replica.follow()
    replica.check_equal("seats")
