"""A target that follows the source: rows, keys, values that were not sent, order."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.sinks.postgres import plain_tasks, stager
from pgtide.sinks.postgres.plain_tasks import stage_from_files
from pgtide.sinks.postgres.staged_rows import StagedRows
from pgtide.spark.layout import TableName
from tests.capture.test_refresh import refresh
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
INSERT INTO bag SELECT n % 3, E'tab\\tback\\\\slash\\nline', '{"a": 1}'
    FROM generate_series(1, 9) n;
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


def test_rows_that_go_with_others(replica: Replica) -> None:
    """The target deletes by itself what the source deleted by itself; that is no conflict."""
    replica.captured.run(
        """CREATE TABLE a (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE c (id int PRIMARY KEY, b int REFERENCES b ON DELETE CASCADE,
    other int REFERENCES a ON DELETE SET NULL ON UPDATE CASCADE);
INSERT INTO a SELECT n, 'c' || n FROM generate_series(1, 9) n;
INSERT INTO b SELECT n, n % 9 + 1 FROM generate_series(1, 30) n;
INSERT INTO c SELECT n, n % 30 + 1, n % 9 + 1 FROM generate_series(1, 90) n;
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE a SET id = -id WHERE id = 3;
DELETE FROM a WHERE id = 1;
INSERT INTO a VALUES (1, 'c1');
UPDATE b SET a = 2 WHERE a = 4;
DELETE FROM a WHERE id = 4;
"""
    )
    replica.follow()
    replica.check_equal("a", "b", "c")


def test_commands_between_rows(replica: Replica) -> None:
    """DDL in its place: rows before it have the old columns, those behind it the new ones."""
    replica.captured.run(
        """CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, m mood);
INSERT INTO t VALUES (1, 'ok'), (2, 'sad');
ALTER TYPE mood ADD VALUE 'happy';
INSERT INTO t VALUES (3, 'happy');
ALTER TABLE t ADD COLUMN at timestamptz DEFAULT now();
UPDATE t SET m = 'happy' WHERE id = 1;
ALTER TABLE t RENAME COLUMN m TO feeling;
DELETE FROM t WHERE id = 2;
CREATE TABLE copied AS SELECT id, feeling::text FROM t;
ALTER TABLE copied ADD PRIMARY KEY (id);
ALTER TABLE t RENAME TO moods;
INSERT INTO moods VALUES (4, 'sad', now());
TRUNCATE copied;
INSERT INTO copied VALUES (9, 'new');
"""
    )
    replica.follow()
    replica.check_equal("moods", "copied")
    with replica.captured.database.connect(autocommit=False) as one:
        one.execute("INSERT INTO moods VALUES (5, 'ok', now())")
        one.execute("ALTER TABLE moods DROP COLUMN at")
        one.execute("CREATE SCHEMA s")
        one.execute("SET LOCAL search_path = s")
        one.execute("CREATE TABLE inner_one (id int PRIMARY KEY, doc text)")
        one.execute("INSERT INTO inner_one VALUES (1, repeat('long', 5000))")
        one.commit()
    replica.captured.run("UPDATE s.inner_one SET id = 2;\n")
    replica.follow()
    replica.check_equal("moods", "s.inner_one")


def test_a_refresh_that_replaces(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v text);\n")
    replica.captured.run("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 20) n;\n")
    replica.follow()
    replica.target.execute("INSERT INTO t VALUES (100, 'ghost')")
    replica.target.execute("UPDATE t SET v = 'other' WHERE id = 3")
    replica.target.execute("DELETE FROM t WHERE id = 4")
    refresh(replica.captured, replace=True)
    replica.follow()
    replica.check_equal("t")


def test_identities_that_the_target_made_itself(replica: Replica) -> None:
    """Rows from before ADD COLUMN get the source's numbers, though nobody may update them."""
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t VALUES (3, 1), (1, 1), (2, 1);
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE t SET v = 2 WHERE id = 3;
ALTER TABLE t ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY;
UPDATE t SET v = 3 WHERE id = 2;
INSERT INTO t (id) VALUES (9);
"""
    )
    replica.follow()
    replica.check_equal("t")
    made = replica.rows("information_schema.columns", "column_name, identity_generation")
    assert ("n", "ALWAYS") in made


def test_partitions_and_triggers(replica: Replica) -> None:
    """Rows move between partitions, partitions go with their rows, triggers do nothing twice."""
    replica.captured.run(
        """CREATE TABLE p (id int, kind text, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
CREATE TABLE pa PARTITION OF p FOR VALUES IN ('a');
CREATE TABLE pb PARTITION OF p FOR VALUES IN ('b');
CREATE TABLE audit (id bigserial PRIMARY KEY, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN INSERT INTO public.audit (what) VALUES (TG_OP); RETURN NULL; END';
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO p SELECT n, 'a' FROM generate_series(1, 9) n;
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE p SET kind = 'b' WHERE id > 5;
UPDATE p SET id = id + 10 WHERE id = 1;
DELETE FROM p WHERE id = 2;
ALTER TABLE p DETACH PARTITION pa;
INSERT INTO pa VALUES (50, 'a');
TRUNCATE pb;
INSERT INTO p VALUES (60, 'b');
"""
    )
    replica.follow()
    replica.check_equal("p", "pa", "pb", "audit")
    replica.captured.execute("INSERT INTO p VALUES (61, 'b'); DROP TABLE pb")
    replica.follow()
    replica.check_equal("p", "pa", "audit")


def test_odd_names(replica: Replica) -> None:
    """Quotes, percent signs, dollars, spaces: in either way of applying."""
    replica.captured.run(
        """CREATE SCHEMA "s %s";
CREATE TABLE "s %s"."t ""%"" $1" ("k %(a)s" int PRIMARY KEY, "v'x" text UNIQUE, "{b}" int,
    "\\$pgtide$" int);
INSERT INTO "s %s"."t ""%"" $1" VALUES (1, 'a', 1), (2, 'b', 2);
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE "s %s"."t ""%"" $1" SET "v'x" = NULL WHERE "k %(a)s" = 1;
UPDATE "s %s"."t ""%"" $1" SET "v'x" = 'a' WHERE "k %(a)s" = 2;
UPDATE "s %s"."t ""%"" $1" SET "v'x" = 'b' WHERE "k %(a)s" = 1;
"""
    )
    replica.follow()
    replica.check_equal('"s %s"."t ""%"" $1"')


def test_rows_are_staged_while_others_are_applied(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are only added, unless rows refer to them that are written before."""
    jobs: list[int] = []

    def counted(*given: Any) -> Any:
        jobs.append(len(given[-1]))
        return stage_from_files(*given)

    monkeypatch.setattr(stager, "stage_from_files", counted)
    monkeypatch.setattr(stager, "BESIDE_ROWS", 1)
    replica.captured.run(
        """CREATE TABLE accounts (id int PRIMARY KEY, n int);
CREATE TABLE entries (id int PRIMARY KEY, account int NOT NULL REFERENCES accounts);
CREATE TABLE last (account int PRIMARY KEY, entry int REFERENCES entries);
INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 9) n;
INSERT INTO last SELECT n FROM generate_series(1, 9) n;
"""
    )
    replica.begin_stream()
    jobs.clear()
    replica.captured.run(
        "UPDATE accounts SET n = id;\nINSERT INTO entries VALUES (1, 1), (2, 9);\n"
    )
    replica.follow()
    assert jobs == [1, 1]
    replica.captured.run("INSERT INTO entries VALUES (3, 3);\nUPDATE last SET entry = 3;\n")
    replica.follow()
    assert jobs == [1, 1, 2]
    replica.check_equal("accounts", "entries", "last")


def test_ways_to_stage_a_batch(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tasks that share its keys, by more where that is too much for one, or through Spark."""
    staged: list[bool] = []

    def noted(*given: Any) -> Any:
        found = stage_from_files(*given)
        staged.append(found is not None)
        return found

    monkeypatch.setattr(stager, "stage_from_files", noted)
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int, at int, v text, PRIMARY KEY (at, id));
INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 100) n;
INSERT INTO u SELECT n, n % 7, repeat('x', 100) FROM generate_series(1, 300) n;
"""
    )
    replica.begin_stream()
    ways = (("SHARE_ROWS", 10, True), ("HELD_BYTES", 7000, True), ("HELD_BYTES", 1000, False))
    for new, (name, value, by_files) in enumerate(ways, 1001):
        monkeypatch.setattr(plain_tasks, name, value)
        replica.captured.run(
            f"""UPDATE t SET id = id + 2 * {new}, v = NULL WHERE id BETWEEN 10 AND 20;
DELETE FROM t WHERE id % 5 = 0;
INSERT INTO t VALUES ({new}, E'\\t\\\\');
UPDATE u SET at = -at WHERE id % 3 = 0;
BEGIN; DELETE FROM u WHERE at = 1; INSERT INTO u VALUES ({new}, 1, 'again'); COMMIT;
"""
        )
        staged.clear()
        replica.follow()
        replica.check_equal("t", "u")
        assert staged == [by_files]


def test_tables_of_a_batch_go_their_own_ways(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with rules, or values that were not sent, does not take the others along."""
    by_files: list[list[TableName]] = []
    by_spark: list[list[TableName]] = []

    def noted(*given: Any) -> Any:
        by_files.append(sorted(given[3].names))
        return stage_from_files(*given)

    def lines(rows: StagedRows, *given: Any) -> Any:
        by_spark.append(sorted(table.layout.table for table in rows.tables))
        return as_lines(rows, *given)

    as_lines = StagedRows.lines
    monkeypatch.setattr(stager, "stage_from_files", noted)
    monkeypatch.setattr(StagedRows, "lines", lines)
    rule = {"table": "public.people", "transform": {"column": "secret", "null": True}}
    pipeline = {"rules": [rule]}
    replica.captured.run(
        """CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE grown (id int PRIMARY KEY);
CREATE TABLE docs (id int PRIMARY KEY, n int, doc text);
ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE bag (v text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE people (id int PRIMARY KEY, secret text);
INSERT INTO plain SELECT n, 'v' || n FROM generate_series(1, 9) n;
INSERT INTO docs SELECT n, n, repeat('x', 3000) FROM generate_series(1, 9) n;
INSERT INTO bag VALUES ('a'), ('a'), ('b');
INSERT INTO people VALUES (1, 'hidden');
"""
    )
    replica.begin_stream(pipeline)
    replica.captured.run(
        """UPDATE plain SET id = id + 100 WHERE id > 5;
INSERT INTO grown SELECT generate_series(1, 9);
UPDATE docs SET n = -n, id = id * 10 WHERE id < 5;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
UPDATE people SET secret = 'hidden too';
INSERT INTO people VALUES (2, 'hidden as well');
"""
    )
    by_files.clear()
    by_spark.clear()
    replica.follow(pipeline)
    assert by_files == [[("public", "grown"), ("public", "plain")]]
    assert by_spark == [[("public", "bag"), ("public", "docs"), ("public", "people")]]
    replica.check_equal("plain", "grown", "docs", "bag")
    assert replica.rows("people") == [("(1,)",), ("(2,)",)]
