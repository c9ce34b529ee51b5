"""Orders of events and settings of the target that are easily forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetError, TargetUnavailable
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.session import connect_target
from pgtide.sinks.postgres.stager import Stager
from pgtide.sinks.postgres.target_tables import enable_triggers
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import Replica
from tests.snapshot.taking import take


def test_a_target_that_is_the_source(spark: SparkSession, captured: Captured) -> None:
    """Its triggers stay as they are, and its changes do not come round."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER mine AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing();
INSERT INTO t VALUES (1);
"""
    )
    replica = Replica(spark, captured, captured.database)
    with pytest.raises(TargetError, match="the target is the source"):
        replica.follow()
    state = "SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'mine'"
    assert captured.execute(state) == [("O",)]


def test_rows_on_both_sides_of_a_command(replica: Replica) -> None:
    """Each segment has its own rows, though the layout is the same."""
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE bag (n int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 0), (2, 0);
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE t SET v = 1 WHERE id = 1;
INSERT INTO bag VALUES (1);
CREATE TABLE other (id int PRIMARY KEY);
UPDATE t SET v = 2 WHERE id = 1;
INSERT INTO bag VALUES (2);
INSERT INTO t VALUES (5, 5);
TRUNCATE t;
INSERT INTO t VALUES (6, 6);
"""
    )
    replica.follow()
    replica.check_equal("t", "bag", "other")


def test_constraints_that_are_deferred(replica: Replica) -> None:
    """A table with rows that they have still to look at can be emptied and altered."""
    replica.captured.run(
        """CREATE TABLE p (id int PRIMARY KEY);
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
INSERT INTO p VALUES (1);
"""
    )
    replica.follow()
    replica.captured.run(
        """INSERT INTO c VALUES (1, 1);
TRUNCATE c;
INSERT INTO c VALUES (2, 1);
CREATE TRIGGER noted AFTER INSERT ON c FOR EACH ROW EXECUTE FUNCTION nothing();
INSERT INTO c VALUES (3, 1);
CREATE TABLE audit (id int);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE RULE noted AS ON INSERT TO p DO ALSO INSERT INTO audit VALUES (new.id);
INSERT INTO p VALUES (9);
"""
    )
    replica.follow()
    replica.check_equal("p", "c", "audit")
    noted = replica.target.execute("SELECT kind, name FROM pgtide.disabled ORDER BY 1")
    assert noted == [("RULE", "noted"), ("TRIGGER", "noted")]


def test_triggers_are_as_at_the_source_in_the_end(replica: Replica) -> None:
    """Also those that were renamed, dropped or switched while they were disabled at the target."""
    made = "BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
    replica.captured.run(
        f"""CREATE TABLE t (id int PRIMARY KEY);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER off {made};
CREATE TRIGGER old_name {made};
CREATE TRIGGER gone {made};
CREATE TRIGGER always {made};
CREATE TRIGGER plain {made};
CREATE RULE quiet AS ON DELETE TO t DO ALSO NOTHING;
INSERT INTO t VALUES (1);
"""
    )
    replica.follow()
    replica.captured.run(
        """ALTER TABLE t DISABLE TRIGGER off;
INSERT INTO t VALUES (2);
ALTER TRIGGER old_name ON t RENAME TO new_name;
INSERT INTO t VALUES (3);
DROP TRIGGER gone ON t;
ALTER TABLE t ENABLE ALWAYS TRIGGER always, DISABLE RULE quiet;
INSERT INTO t VALUES (4);
"""
    )
    replica.follow()
    replica.check_equal("t")
    switches = (
        "SELECT tgname::text, tgenabled::text FROM pg_trigger WHERE tgrelid = 't'::regclass"
        " UNION ALL"
        " SELECT rulename::text, ev_enabled::text FROM pg_rewrite WHERE rulename = 'quiet'"
        " ORDER BY 1"
    )
    before = dict(replica.target.execute(switches))
    assert (before["new_name"], before["plain"]) == ("D", "D")
    with connect(replica.target.url) as connection:
        assert enable_triggers(connection) == 2
    assert replica.target.execute(switches) == replica.captured.execute(switches)


def test_triggers_of_single_partitions(replica: Replica) -> None:
    """They fire where a partition has switched them on, whatever its parent's one does."""
    replica.captured.run(
        """CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN new.n := new.n + 1; RETURN new; END';
CREATE TRIGGER more BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION more();
INSERT INTO p VALUES (1, 1), (11, 1);
ALTER TABLE p DISABLE TRIGGER more;
ALTER TABLE p1 ENABLE TRIGGER more;
INSERT INTO p VALUES (2, 1), (12, 1);
"""
    )
    replica.follow()
    replica.check_equal("p1", "p2")
    switches = (
        "SELECT tgrelid::regclass::text, tgenabled::text FROM pg_trigger"
        " WHERE tgname = 'more' ORDER BY 1"
    )
    with connect(replica.target.url) as connection:
        assert enable_triggers(connection) == 1
    assert replica.target.execute(switches) == replica.captured.execute(switches)


def test_commands_while_constraints_wait(replica: Replica) -> None:
    """Rows that refer to nothing yet, in the middle of the transaction that brings the rest."""
    replica.captured.run(
        """CREATE TABLE p (id int PRIMARY KEY);
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE other (LIKE c INCLUDING ALL, FOREIGN KEY (p) REFERENCES p DEFERRABLE);
INSERT INTO p VALUES (0);
"""
    )
    replica.follow()
    commands = ("TRUNCATE other", "ALTER TABLE other ADD COLUMN x int")
    with replica.captured.database.connect(autocommit=False) as one:
        for number, command in enumerate(commands, start=1):
            one.execute(f"INSERT INTO other VALUES ({number}, 0)".encode())
            one.commit()
            one.execute(f"INSERT INTO c VALUES ({number}, {number})".encode())
            one.execute(command.encode())
            one.execute(f"INSERT INTO p VALUES ({number})".encode())
            one.commit()
    replica.follow()
    replica.check_equal("p", "c", "other")


def test_what_only_the_order_of_events_tells(replica: Replica) -> None:
    """Seats make it be looked at: numbers that nobody may update, rows without a key."""
    replica.captured.run(
        """CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);
CREATE TABLE made (id int PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY);
CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE bag (a int REFERENCES a ON UPDATE CASCADE ON DELETE SET NULL,
    b int REFERENCES a ON UPDATE CASCADE, v text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');
INSERT INTO made VALUES (1), (2);
INSERT INTO a VALUES (1), (2), (3), (4);
INSERT INTO bag VALUES (1, NULL, 'x'), (1, NULL, 'x'), (2, NULL, 'x'), (1, 2, 'x');
INSERT INTO bag VALUES (3), (4);
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
INSERT INTO made VALUES (3);
UPDATE made SET n = DEFAULT WHERE id = 3;
UPDATE made SET id = 7, n = DEFAULT WHERE id = 1;
UPDATE a SET id = id + 10 WHERE id < 3;
UPDATE bag SET v = 'w' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 11);
DELETE FROM a WHERE id = 3;
"""
    )
    with replica.captured.database.connect(autocommit=False) as one:
        one.execute("UPDATE a SET id = 40 WHERE id = 4")
        one.execute("DELETE FROM bag WHERE a = 40")
        one.commit()
    replica.follow()
    replica.check_equal("seats", "made", "a", "bag")


def test_rows_of_one_statement_that_refer_to_each_other(replica: Replica) -> None:
    """Foreign keys look behind a statement, and the log does not say where one ends."""
    replica.captured.run(
        """CREATE TABLE tree (id int PRIMARY KEY, next int REFERENCES tree);
CREATE TABLE a (id int PRIMARY KEY, b int);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);
ALTER TABLE a ADD CONSTRAINT "to b" FOREIGN KEY (b) REFERENCES b;
CREATE TABLE parted (id int PRIMARY KEY, tree int REFERENCES tree) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE both_kinds (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY,
    next int REFERENCES both_kinds, later int REFERENCES tree DEFERRABLE);
CREATE TABLE numbers (id int PRIMARY KEY);
CREATE TABLE follower (id int PRIMARY KEY, number int REFERENCES numbers);
INSERT INTO numbers VALUES (2), (3);
INSERT INTO follower VALUES (1, 2);
"""
    )
    replica.follow()
    replica.captured.run(
        """INSERT INTO tree SELECT n, nullif(n + 1, 5) FROM generate_series(1, 4) n;
WITH one AS (INSERT INTO a VALUES (1, 1)) INSERT INTO b VALUES (1, 1);
WITH one AS (INSERT INTO parted VALUES (1, 9)) INSERT INTO tree VALUES (9, 9);
INSERT INTO both_kinds (id, next, later)
    SELECT n, nullif(n + 1, 4), 1 FROM generate_series(1, 3) n;
UPDATE numbers SET id = id - 1;
ALTER TABLE tree ADD COLUMN note text;
UPDATE tree SET next = CASE id WHEN 4 THEN 1 END;
UPDATE both_kinds SET later = 2, next = nullif(4 - id, id), n = DEFAULT;
WITH one AS (DELETE FROM a WHERE id = 1) DELETE FROM b;
"""
    )
    replica.follow()
    replica.check_equal("tree", "a", "b", "parted", "both_kinds", "numbers", "follower")
    late = "SELECT conname FROM pg_constraint WHERE contype = 'f' AND condeferrable"
    assert replica.target.execute(late) == [("both_kinds_later_fkey",)]
    replica.target.execute("ALTER TABLE tree DROP CONSTRAINT tree_next_fkey")
    replica.target.execute("ALTER TABLE tree ADD FOREIGN KEY (next) REFERENCES a NOT VALID")
    replica.captured.run("INSERT INTO tree VALUES (20, 20), (21, NULL)")
    with pytest.raises(TargetError, match="by constraint tree_next_fkey") as raised:
        replica.follow()
    assert 'key {"id": "20"}' in raised.value.detail
    replica.target.execute("ALTER TABLE tree DROP CONSTRAINT tree_next_fkey")
    replica.target.execute(
        "ALTER TABLE both_kinds ADD CONSTRAINT here FOREIGN KEY (next) REFERENCES a NOT VALID"
    )
    replica.captured.run("UPDATE both_kinds SET next = 2, n = DEFAULT WHERE id = 3")
    with pytest.raises(TargetError, match="by constraint here") as raised:
        replica.follow()
    assert 'key {"id": "3"}' in raised.value.detail


def test_keys_that_change_with_others(replica: Replica) -> None:
    """In the source's order the target changes by itself what the source has changed."""
    replica.captured.run(
        """CREATE TABLE a (id int PRIMARY KEY, code text UNIQUE);
CREATE TABLE b (a int REFERENCES a ON UPDATE CASCADE, n int, v text, PRIMARY KEY (a, n));
CREATE TABLE k (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
INSERT INTO a VALUES (1, 'x'), (2, 'y');
INSERT INTO b VALUES (1, 1, 'v'), (2, 1, 'v');
INSERT INTO k DEFAULT VALUES;
"""
    )
    replica.follow()
    replica.captured.run(
        """UPDATE a SET id = 11 WHERE id = 1;
UPDATE b SET v = 'w' WHERE a = 11;
UPDATE k SET id = DEFAULT;
INSERT INTO k DEFAULT VALUES;
"""
    )
    replica.follow()
    replica.check_equal("a", "b", "k")


def test_values_are_not_cut(replica: Replica) -> None:
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY, v varchar(9));\n")
    replica.follow()
    replica.target.execute("ALTER TABLE t ALTER v TYPE varchar(3)")
    replica.captured.run("INSERT INTO t VALUES (1, 'abcdef');\n")
    with pytest.raises(TargetError, match="refuses"):
        replica.follow()
    replica.target.execute("ALTER TABLE t ALTER v TYPE varchar(9)")
    replica.follow()
    replica.check_equal("t")


def test_tables_that_inherit_are_not_emptied_with_others(replica: Replica) -> None:
    replica.captured.run(
        """CREATE TABLE base (id int PRIMARY KEY);
CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (base);
INSERT INTO base VALUES (1);
INSERT INTO heir VALUES (2);
"""
    )
    replica.follow()
    replica.captured.run("TRUNCATE ONLY base;\nINSERT INTO base VALUES (3);\n")
    replica.follow()
    replica.check_equal("ONLY base", "heir")
    replica.captured.run("TRUNCATE base;\nINSERT INTO base VALUES (4);\n")
    replica.follow()
    replica.check_equal("ONLY base", "heir")


def test_partitioned_tables_that_are_emptied_with_others(replica: Replica) -> None:
    """The log has their partitions, and nothing of tables without any or that are unlogged."""
    replica.captured.run(
        """CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a) PARTITION BY RANGE (id);
CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE b11 PARTITION OF b1 FOR VALUES FROM (0) TO (5);
CREATE TABLE b2 PARTITION OF b DEFAULT;
CREATE TABLE c (id int PRIMARY KEY, b int REFERENCES b) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE d (b int REFERENCES b);
CREATE TABLE e (id int PRIMARY KEY, a int REFERENCES a);
INSERT INTO a VALUES (1), (2);
INSERT INTO b VALUES (1, 1), (20, 2);
INSERT INTO e VALUES (1, 1);
"""
    )
    replica.follow()
    replica.captured.run("TRUNCATE a CASCADE;\nINSERT INTO a VALUES (3);\n")
    replica.captured.run("INSERT INTO b VALUES (3, 3);\nTRUNCATE b CASCADE;\n")
    replica.follow()
    replica.check_equal("a", "b", "e")
    replica.target.execute("CREATE TABLE other (a int REFERENCES a)")
    replica.captured.run("TRUNCATE a CASCADE;\n")
    with pytest.raises(TargetError, match="the target refuses"):
        replica.follow()


def test_a_table_that_is_made_from_no_rows(replica: Replica) -> None:
    """Its command stays in front of all that is done to the table in the same transaction."""
    with replica.captured.database.connect() as connection, connection.transaction():
        connection.execute("CREATE TABLE emptied AS SELECT 1 AS id WHERE false")
        connection.execute("CREATE TABLE changed AS SELECT 1 AS id WHERE false")
        connection.execute("TRUNCATE emptied")
        connection.execute("ALTER TABLE changed ADD COLUMN v text")
        connection.execute("INSERT INTO emptied VALUES (1)")
        connection.execute("INSERT INTO changed VALUES (1, 'a')")
    replica.follow()
    replica.check_equal("emptied", "changed")


def test_settings_of_the_target(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has set for its own sessions does not hide rows, or read texts in another way."""
    monkeypatch.setattr("pgtide.sinks.postgres.stager.BESIDE_ROWS", 1)
    replica.captured.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int);\n"
        "CREATE TABLE words (id int PRIMARY KEY, w text[]);\nINSERT INTO t VALUES (1, 1);\n"
    )
    replica.follow()
    for setting in ("default_transaction_isolation = 'repeatable read'", "array_nulls = off"):
        replica.target.execute(f'ALTER DATABASE "{replica.target.name}" SET {setting}')
    replica.captured.run("UPDATE t SET v = 2;\nINSERT INTO words VALUES (1, '{a,NULL}');\n")
    replica.follow()
    replica.check_equal("t", "words")


def test_a_client_that_is_gone_is_noticed(target: Database) -> None:
    """Its machine, that is: the server would keep for hours what it has locked."""
    with connect_target(target.tcp_url) as connection:
        for setting in ("idle", "interval", "count"):
            row = connection.execute(f"SHOW tcp_keepalives_{setting}".encode()).fetchone()
            assert row is not None
            assert 0 < int(row[0]) <= 10


def test_staged_rows_that_are_gone(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the pipeline empties stages: then nothing is said to be in the target."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    replica.follow()
    stage = Stager.stage

    def emptied(self: Stager, *given: Any) -> Any:
        staged = stage(self, *given)
        for (name,) in replica.target.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE tablename LIKE 'stage%'"
        ):
            replica.target.execute(f"TRUNCATE {name}")
        return staged

    replica.captured.run("INSERT INTO t VALUES (1);\n")
    with monkeypatch.context() as patched:
        patched.setattr(Stager, "stage", emptied)
        with pytest.raises(TargetUnavailable, match="somebody else writes"):
            replica.follow()
    replica.follow()
    replica.check_equal("t")


def test_tables_without_columns(replica: Replica) -> None:
    """Their rows are told apart by nothing, so they are counted; in either way of applying."""
    replica.captured.run(
        """CREATE TABLE nothing ();
ALTER TABLE nothing REPLICA IDENTITY FULL;
CREATE TABLE seats (id int PRIMARY KEY, person text UNIQUE);
INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO nothing DEFAULT VALUES;
"""
    )
    replica.follow()
    assert replica.rows("nothing", "count(*)") == [(2,)]
    replica.captured.run("DELETE FROM nothing WHERE ctid = (SELECT min(ctid) FROM nothing);\n")
    replica.follow()
    assert replica.rows("nothing", "count(*)") == [(1,)]
    replica.captured.run(
        """UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO nothing DEFAULT VALUES;
DELETE FROM nothing WHERE ctid = (SELECT min(ctid) FROM nothing);
"""
    )
    replica.follow()
    assert replica.rows("nothing", "count(*)") == [(2,)]


@pytest.mark.parametrize("before", ["", "UPDATE seats SET id = 3 - id;\n"])
def test_equal_rows_that_are_printed_differently(replica: Replica, before: str) -> None:
    """Blanks at the end count for nothing when texts are compared; the right row goes anyway."""
    replica.captured.run(
        """CREATE TABLE seats (id int PRIMARY KEY DEFERRABLE, person text UNIQUE);
ALTER TABLE seats REPLICA IDENTITY FULL;
INSERT INTO seats VALUES (1, 'ann'), (2, 'bob');
CREATE TABLE bag (b bpchar, c char(3));
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('a', 'x'), ('a  ', 'x'), ('a ', 'x');
"""
    )
    replica.follow()
    replica.captured.run(before + "DELETE FROM bag WHERE octet_length(b) = 3;\n")
    replica.follow()
    replica.check_equal("seats", "bag")


def test_another_log(replica: Replica) -> None:
    """Its positions would mean nothing: every row would be passed over."""
    replica.captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    replica.follow()
    replica.target.execute("UPDATE pgtide.progress SET log = 'another/one/altogether'")
    replica.captured.run("INSERT INTO t VALUES (1);\n")
    with pytest.raises(TargetError, match="follows another log"):
        replica.follow()


@pytest.mark.slow
def test_filters_of_rows_that_were_there(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """What a filter keeps out does not come with the snapshot; rows without a key are counted."""
    for each in (database, target):
        each.execute("CREATE TABLE t (id int PRIMARY KEY, kind text); CREATE TABLE bag (kind text)")
    database.execute("INSERT INTO t VALUES (1, 'in'), (2, 'out')")
    database.execute("INSERT INTO bag VALUES ('in'), ('in'), ('out')")
    captured = make_captured(snapshot="initial", keyless="full")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    wanted = {"column": "kind", "operator": "eq", "value": "in"}
    rules = [{"table": f"public.{table}", "filter": wanted} for table in ("t", "bag")]
    replica.follow({"rules": rules})
    assert replica.rows("t", "id") == [(1,)]
    assert replica.rows("bag", "kind") == [("in",), ("in",)]
    database.execute("INSERT INTO bag VALUES ('out'); DELETE FROM bag WHERE kind = 'out'")
    database.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
    database.execute(
        "UPDATE t SET kind = 'out' WHERE id = 1; UPDATE t SET kind = 'in' WHERE id = 2"
    )
    replica.follow({"rules": rules})
    assert replica.rows("t", "id") == [(2,)]
    assert replica.rows("bag", "kind") == [("in",)]
