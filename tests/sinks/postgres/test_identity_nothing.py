"""Tables whose old rows the source does not name: their inserts follow, and nothing else comes."""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtide.errors import IdentityMissing
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import Replica

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v text);
ALTER TABLE keyed REPLICA IDENTITY NOTHING;
CREATE TABLE keyless (v text);
ALTER TABLE keyless REPLICA IDENTITY NOTHING;
CREATE TABLE parted (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
ALTER TABLE low REPLICA IDENTITY NOTHING
"""
INSERTS = "INSERT INTO keyed VALUES ({0}, 'a');\nINSERT INTO keyless VALUES ('a'), ('a');\n"
INSERTS += "INSERT INTO parted VALUES ({0}, 'a'), ({0}, 'a');\n"


@pytest.mark.slow
def test_inserts_follow(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    for each in (database, target):
        each.execute(TABLES)
    with pytest.raises(IdentityMissing):
        make_captured()
    replica = Replica(spark, make_captured(keyless="insert"), target)
    for number in (1, 2):
        replica.captured.run(INSERTS.format(number))
        replica.follow()
        replica.check_equal("keyed", "keyless", "parted")
    # Changes are not published, so the application may make them, and the target lacks them.
    database.execute("UPDATE keyed SET v = 'b'; DELETE FROM keyless; UPDATE parted SET v = 'b'")
    replica.captured.run("INSERT INTO keyed VALUES (3, 'a');\n")
    replica.follow()
    assert replica.rows("keyed", "*") == [(1, "a"), (2, "a"), (3, "a")]
    assert replica.rows("keyless") == [("(a)",)] * 4
    assert replica.rows("parted", "v") == [("a",)] * 4


@pytest.mark.slow
def test_an_identity_that_is_taken_away(replica: Replica) -> None:
    """The source itself refuses changes from then on, and the target has the same identity."""
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a');
UPDATE t SET v = 'b';
ALTER TABLE t REPLICA IDENTITY NOTHING;
INSERT INTO t VALUES (2, 'a');
"""
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        replica.captured.execute("UPDATE t SET v = 'c'")
    replica.captured.run("ALTER TABLE t REPLICA IDENTITY DEFAULT;\nUPDATE t SET v = 'c';\n")
    replica.follow()
    replica.check_equal("t")
