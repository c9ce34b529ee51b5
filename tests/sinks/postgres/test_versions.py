"""From one release of Postgres to another, with types of extensions."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.postgres import MakeServer, binaries
from tests.sinks.postgres.replicas import Replica
from tests.sinks.postgres.test_values import ROWS, TYPES

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
    replica.follow()
    replica.check_equal("v")
    replica.captured.run(EXTENSIONS)
    replica.captured.run(
        "UPDATE v SET id = id + 10;\nTRUNCATE v;\nINSERT INTO v (id) VALUES (7);\n"
    )
    replica.follow()
    replica.check_equal("v", "e")
