"""A pipeline that sends tables to other names: rows and DDL go the same way."""

from __future__ import annotations

import pytest

from pgtide.errors import TargetError
from tests.sinks.postgres.replicas import Replica

ALL = {
    "routes": [{"table": "public.*", "to": "crm.*"}],
    "rules": [{"table": "public.*", "exclude": ["password"]}],  # which no table has
}


def test_every_table_of_a_schema_goes_to_another(replica: Replica) -> None:
    """The pattern fits any word of a statement, and means the tables alone."""
    replica.target.execute("CREATE SCHEMA crm")
    replica.captured.run(
        """CREATE TYPE mood AS ENUM ('calm');
CREATE TABLE a (id serial PRIMARY KEY, v text UNIQUE, mood mood DEFAULT 'calm');
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, at timestamptz DEFAULT now());
CREATE TABLE heir () INHERITS (a);
INSERT INTO a (v) VALUES ('x');
INSERT INTO b VALUES (1, 1);
INSERT INTO heir VALUES (7, 'h');
CREATE INDEX by_v ON a (v);
ALTER TABLE a ADD COLUMN n numeric DEFAULT 1;
CREATE TABLE copied AS SELECT * FROM a;
CREATE VIEW one AS SELECT 1 AS n;
CREATE SCHEMA x CREATE TABLE stays (id int PRIMARY KEY);
INSERT INTO x.stays VALUES (1);
CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1), (11);
TRUNCATE p1;
INSERT INTO p VALUES (2);
ALTER TABLE p DETACH PARTITION p2;
INSERT INTO p2 VALUES (30);
ALTER TABLE b RENAME TO c;
ALTER TABLE a RENAME TO b;
UPDATE b SET v = 'y';
"""
    )
    replica.follow(ALL)
    for table in ("b", "c", "heir", "copied", "p", "p1", "p2"):
        query = "SELECT t::text FROM {} t ORDER BY 1"
        copy = replica.target.execute(query.format(f"crm.{table}"))
        assert copy == replica.captured.execute(query.format(table)), table
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    assert replica.target.execute(f"{left} AND relkind <> 'c'") == [("one",)]
    assert replica.target.execute("SELECT id FROM x.stays") == [(1,)]
    replica.captured.run("CREATE VIEW two AS SELECT v FROM b;\n")
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow(ALL)
    assert "It mentions b, which routes rename" in caught.value.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    ["DROP INDEX a.i", "ALTER INDEX a.i RENAME TO j", "ALTER SEQUENCE a.t_id_seq INCREMENT 5"],
)
def test_schemas_that_change_places(replica: Replica, statement: str) -> None:
    """Under the name of an index that went with its table there is one of another table."""
    swap = {"routes": [{"table": "a.*", "to": "b.*"}, {"table": "b.*", "to": "a.*"}]}
    replica.captured.run(
        """CREATE SCHEMA a;
CREATE SCHEMA b;
CREATE TABLE a.t (id serial PRIMARY KEY, v text);
CREATE TABLE b.t (id serial PRIMARY KEY, w int);
CREATE INDEX i ON a.t (v);
CREATE INDEX i ON b.t (w);
"""
    )
    replica.follow(swap)
    replica.captured.run(statement)
    with pytest.raises(TargetError, match="cannot be replayed") as raised:
        replica.follow(swap)
    assert "Routes put tables of schema a elsewhere, and others there." in raised.value.detail
    assert replica.target.execute("SELECT 'a.i'::regclass::oid <> 0") == [(True,)]
