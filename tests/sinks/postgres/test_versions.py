"""From one release of Postgres to another: every type, those of extensions, and a whole move."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pgtide.cutover.cutting_over import Cutover
from pgtide.cutover.outcome import Settings
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.target_schemas import TargetSchemas
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer, binaries
from tests.sinks.postgres.replicas import PIPELINE, Replica
from tests.sinks.postgres.samples import write_samples
from tests.sinks.postgres.test_values import ROWS, TYPES
from tests.snapshot.schemas import COLUMNS, OBJECTS, SHOP

EXTENSIONS = """CREATE EXTENSION hstore;
CREATE SCHEMA ext;
CREATE EXTENSION citext SCHEMA ext;
CREATE EXTENSION ltree;
CREATE TABLE e (id ext.citext PRIMARY KEY, h hstore, l ltree, la ltree[], d text);
INSERT INTO e VALUES ('Key', '"k"=>NULL, "a b"=>"c\\"d"', 'a.b.c', '{a,b.c}', 'x');
INSERT INTO e VALUES ('k2', '', '', '{}', '');
UPDATE e SET id = 'KEY', h = h || 'n=>1' WHERE id = 'key';
UPDATE e SET d = 'y' WHERE id = 'k2';
ALTER TABLE e ADD COLUMN other ext.citext DEFAULT 'Default';
INSERT INTO e (id) VALUES ('k3');
DELETE FROM e WHERE id = 'K2';
"""


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize(("source", "target"), [(14, 18), (18, 15)])
def test_between_releases(
    spark: SparkSession,
    make_server: MakeServer,
    make_captured: MakeCaptured,
    source: int,
    target: int,
) -> None:
    first = Database.create(make_server(binaries(source)))
    second = Database.create(make_server(binaries(target)))
    replica = Replica(spark, make_captured(first), second)
    replica.captured.run(TYPES)
    replica.captured.run(ROWS)
    write_samples(first, "samples")
    replica.follow()
    replica.check_equal("v", "samples")
    replica.captured.run(EXTENSIONS)
    replica.captured.run(
        "UPDATE v SET id = id + 10;\nTRUNCATE v;\nINSERT INTO v (id) VALUES (7);\n"
    )
    replica.captured.run("UPDATE samples SET id = -id;\n")
    replica.follow()
    replica.check_equal("v", "e", "samples")


@pytest.mark.slow
@pytest.mark.versions
def test_columns_that_are_computed(
    spark: SparkSession, make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    """Stored or when they are asked for, in either way of applying, made and changed by DDL."""
    first, second = (Database.create(make_server(binaries(18))) for _ in range(2))
    replica = Replica(spark, make_captured(first), second)
    replica.captured.run(
        """CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL, id int PRIMARY KEY,
    thrice int GENERATED ALWAYS AS (a * 3) STORED, doc text);
ALTER TABLE t ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE seats (loud text GENERATED ALWAYS AS (person || '!') VIRTUAL, id int PRIMARY KEY,
    person text UNIQUE);
INSERT INTO seats (id, person) VALUES (1, 'ann'), (2, 'bob');
INSERT INTO t (a, id, doc) SELECT n, n, repeat('x', 3000) FROM generate_series(1, 9) n;
"""
    )
    replica.follow()
    replica.check_equal("t", "seats")
    replica.captured.run(
        """UPDATE t SET a = 50 WHERE id = 1;
UPDATE t SET id = 100 WHERE id = 2;
ALTER TABLE t ADD COLUMN later int GENERATED ALWAYS AS (a + 1) VIRTUAL;
INSERT INTO t (a, id) VALUES (7, 70);
ALTER TABLE t ALTER COLUMN twice SET EXPRESSION AS (a * 20);
UPDATE t SET a = a + 1;
ALTER TABLE t ALTER COLUMN thrice DROP EXPRESSION;
UPDATE t SET thrice = 5 WHERE id = 3;
UPDATE seats SET person = NULL WHERE id = 1;
UPDATE seats SET person = 'ann' WHERE id = 2;
UPDATE seats SET person = 'bob' WHERE id = 1;
"""
    )
    replica.follow()
    replica.check_equal("t", "seats")


BEFORE = """
INSERT INTO shop.customers (name, age) SELECT 'n' || n, 20 + n % 50 FROM generate_series(1, 300) n;
INSERT INTO shop.orders (customer, total) SELECT n, n FROM generate_series(1, 300) n;
INSERT INTO shop.events SELECT n, date '2024-01-01' + n FROM generate_series(1, 500) n;
INSERT INTO "Odd one"."o""dd; Type: x" VALUES (1, 'é');
SELECT nextval('shop.tickets') FROM generate_series(1, 7);
REFRESH MATERIALIZED VIEW shop.totals;
"""
AFTER = """UPDATE shop.customers SET mood = 'sad', odd = (1, 'x') WHERE id % 7 = 0;
DELETE FROM shop.orders WHERE id % 5 = 0;
UPDATE shop.events SET at = at + 400 WHERE id < 20;
ALTER TYPE shop.mood ADD VALUE 'calm';
ALTER TABLE shop.orders ADD COLUMN token uuid NOT NULL DEFAULT gen_random_uuid();
CREATE TABLE shop.notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note ext.citext);
INSERT INTO shop.notes (note) VALUES ('A'), ('b');
CREATE INDEX notes_note ON shop.notes (note);
ALTER TABLE shop.customers RENAME COLUMN name TO called;
CREATE VIEW shop.calm AS SELECT called FROM shop.customers WHERE mood = 'calm';
UPDATE shop.customers SET mood = 'calm' WHERE id < 4;
CREATE TABLE shop.events_2027 PARTITION OF shop.events
    FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
INSERT INTO shop.events VALUES (1, '2027-02-02');
"""
TABLES = (
    *("shop.customers", "shop.orders", "shop.events", "shop.notes", '"Odd one"."o""dd; Type: x"'),
)


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("source", "target"), [(14, 18), (18, 15)])
def test_a_move_between_releases(
    spark: SparkSession,
    make_server: MakeServer,
    make_captured: MakeCaptured,
    source: int,
    target: int,
) -> None:
    """Schema, rows, changes, DDL, cutover, the application there, and the way back."""
    first = Database.create(make_server(binaries(source)))
    second = Database.create(make_server(binaries(target)))
    first.execute(f"CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; {SHOP}{BEFORE}")
    replica = Replica(spark, make_captured(first, keyless="full"), second)
    config = replica.config()
    schemas = TargetSchemas(config, [PIPELINE])
    assert InitialSnapshot(config, spark, schemas=schemas).take()
    replica.captured.run(AFTER)
    replica.follow()
    outcome = Cutover(spark, config, PIPELINE, Settings(read_only=True)).run()
    assert outcome.ready, outcome.checks
    assert {check.name for check in outcome.checks if check.level != "ok"} <= {"unlogged"}
    assert outcome.verification is not None
    assert {table.table for table in outcome.verification.tables} >= {"shop.notes", "shop.events"}
    replica.check_equal(*TABLES, "shop.totals")
    assert second.execute(COLUMNS) == first.execute(COLUMNS)
    assert second.execute(OBJECTS) == first.execute(OBJECTS)

    back = Replica(spark, make_captured(second, keyless="full"), first)
    assert outcome.undo is not None
    first.execute(outcome.undo)
    second.execute(
        """
        INSERT INTO shop.customers (called) VALUES ('new');
        INSERT INTO shop.notes (note) VALUES ('c');
        INSERT INTO shop.orders (customer, total) VALUES (301, 1);
        UPDATE shop.orders SET total = 2 WHERE id = 101;
        INSERT INTO shop.cache VALUES ('k');
        SELECT nextval('shop.tickets');
        """
    )
    assert second.execute("SELECT max(id) FROM shop.customers") == [(301,)]
    assert second.execute("SELECT count(*) FROM shop.orders WHERE touched IS NOT NULL") == [(1,)]
    assert second.execute("SELECT last_value FROM shop.tickets") == [(36,)]
    back.captured.run("ALTER TABLE shop.notes ADD COLUMN more int DEFAULT 7;\n")
    back.follow()
    back.check_equal(*TABLES)
