"""What rules hide is in no file of the target's server: tables, catalog, WAL, its own log."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetError
from pgtide.snapshot.initial import InitialSnapshot
from pgtide.snapshot.target_schemas import TargetSchemas
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer
from tests.sinks.postgres.ddl_replica import capture_all
from tests.sinks.postgres.replicas import PIPELINE, Replica

SECRET = "4929-1877-3301"
PLAIN = "plainly-there"
TALKATIVE = {
    "log_statement": "all",
    "log_min_duration_statement": "0",
    "log_error_verbosity": "verbose",
    "log_parameter_max_length_on_error": "-1",
    "log_temp_files": "0",
    "work_mem": "64kB",
    "wal_compression": "off",
}
RULES: list[dict[str, Any]] = [
    {"table": "*.cards*", "optional": True, "transform": {"column": "number", "mask": {}}},
    {"table": "*.cards*", "optional": True, "transform": {"column": "code", "sql": "md5(code)"}},
    {"table": "*.cards*", "optional": True, "transform": {"column": "scan", "null": True}},
    {"table": "*.cards", "filter": {"column": "owner", "operator": "ne", "value": "zoe"}},
]
MADE = f"""
CREATE TABLE cards (id int PRIMARY KEY, owner text, number text NOT NULL DEFAULT '{SECRET}',
    code text DEFAULT '{SECRET}' UNIQUE, scan bytea);
ALTER TABLE cards REPLICA IDENTITY FULL;
INSERT INTO cards SELECT n, '{PLAIN}', '{SECRET}', '{SECRET}' || n FROM generate_series(1, 300) n;
INSERT INTO cards VALUES (1000, 'zoe', '{SECRET}', '{SECRET}zoe');
CREATE TABLE cards_by_owner (owner text PRIMARY KEY, number text);
INSERT INTO cards_by_owner VALUES ('x', '{SECRET}')
"""
CHANGES = f"""UPDATE cards SET number = number || '9' WHERE id < 50;
UPDATE cards SET code = NULL WHERE id = 1;
UPDATE cards SET code = '{SECRET}1' WHERE id = 2;
UPDATE cards SET code = '{SECRET}2' WHERE id = 1;
UPDATE cards SET id = id + 5000 WHERE id > 290;
UPDATE cards SET owner = 'zoe' WHERE id BETWEEN 60 AND 70;
UPDATE cards SET owner = 'ann' WHERE id = 1000;
UPDATE cards SET scan = convert_to(repeat('{SECRET}', 20000), 'UTF8') WHERE id = 3;
UPDATE cards SET owner = 'bob' WHERE id = 3;
DELETE FROM cards WHERE id BETWEEN 80 AND 90;
UPDATE cards_by_owner SET owner = 'xx', number = '{SECRET}0';
INSERT INTO cards_by_owner VALUES ('y', '{SECRET}1'), ('z', '{SECRET}2');
DELETE FROM cards_by_owner WHERE owner = 'y';
ALTER TABLE cards ADD COLUMN note text DEFAULT 'n', ALTER number SET DEFAULT '{SECRET}0';
ALTER TABLE cards ALTER COLUMN number TYPE varchar(90) USING number || '7';
ALTER TABLE cards ADD COLUMN token uuid DEFAULT gen_random_uuid();
CREATE TABLE cards_of_old (LIKE cards INCLUDING ALL);
INSERT INTO cards_of_old SELECT * FROM cards;
ALTER TABLE cards_of_old DROP COLUMN code, ADD COLUMN code text DEFAULT '{SECRET}';
CREATE TABLE cards_made AS SELECT id, number, code FROM cards;
CREATE TABLE cards_more (id int PRIMARY KEY);
INSERT INTO cards_more VALUES (1);
ALTER TABLE cards_more ADD COLUMN number text DEFAULT '{SECRET}' || current_user;
DO $$ BEGIN UPDATE cards SET number = '{SECRET}' WHERE id = 4; --
    ALTER TABLE cards ADD COLUMN plain int DEFAULT 1; END $$;
CREATE MATERIALIZED VIEW numbers AS SELECT number FROM cards;
CREATE INDEX ON cards (number);
TRUNCATE cards_made
"""


@pytest.mark.slow
def test_masked_values_are_in_no_file(
    spark: SparkSession, make_captured: MakeCaptured, database: Database, make_server: MakeServer
) -> None:
    server = make_server(None, **TALKATIVE)
    target = Database.create(server)
    database.execute(MADE)
    replica = Replica(spark, make_captured(database, snapshot="initial"), target)
    pipeline: dict[str, Any] = {"rules": RULES}
    config = replica.config(pipeline)
    assert InitialSnapshot(config, spark, schemas=TargetSchemas(config, [PIPELINE])).take()
    replica.follow(pipeline)
    replica.captured.run(CHANGES)
    capture_all(replica.captured)
    replica.apply(pipeline)
    assert replica.rows("cards", "count(*)") == replica.captured.execute(
        "SELECT count(*) FROM cards WHERE owner <> 'zoe'"
    )
    errors = [_refused(replica, pipeline), _conflicting(replica, pipeline)]
    for error in errors:
        assert SECRET not in f"{error} {error.detail} {error.hint}"
    target.execute("CHECKPOINT")
    files = [path for path in server.directory.rglob("*") if path.is_file()]
    held = {path.relative_to(server.directory): path.read_bytes() for path in files}
    assert sum(PLAIN.encode() in content for content in held.values()) > 2
    secrets = (SECRET.encode(), SECRET.encode().hex().encode())
    assert [path for path, text in held.items() if any(each in text for each in secrets)] == []


def _refused(replica: Replica, pipeline: dict[str, Any]) -> TargetError:
    """A row that the target alone does not take."""
    replica.target.execute("ALTER TABLE cards ADD CONSTRAINT few CHECK (id < 20000)")
    replica.captured.run(f"INSERT INTO cards (id, owner, code) VALUES (20001, 'b', '{SECRET}b');\n")
    with pytest.raises(TargetError) as caught:
        replica.follow(pipeline)
    replica.target.execute("ALTER TABLE cards DROP CONSTRAINT few")
    replica.follow(pipeline)
    return caught.value


def _conflicting(replica: Replica, pipeline: dict[str, Any]) -> TargetError:
    """A change of a row that the target does not have."""
    replica.target.execute("DELETE FROM cards_by_owner")
    replica.captured.run(f"UPDATE cards_by_owner SET number = '{SECRET}3' WHERE owner = 'z';\n")
    with pytest.raises(TargetError) as caught:
        replica.follow(pipeline)
    replica.follow(pipeline, on_conflict="apply")
    return caught.value
