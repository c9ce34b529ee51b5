"""DDL while a table is parked: the others have it at once, the table when it comes back."""

from __future__ import annotations

import pytest

from pgtide.errors import ConfigError, TargetError
from pgtide.postgres.connection import connect
from pgtide.sinks.postgres.skipping import skip
from tests.sinks.postgres.ddl_replica import schema_of
from tests.sinks.postgres.replicas import PIPELINE, Replica

PARK = {"on_error": "park"}


def parked(replica: Replica, table: str, *before: str) -> None:
    """A pipeline whose table ``table`` is parked, and another one that is not."""
    for statement in before:
        replica.captured.run(statement)
    replica.captured.run(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
    replica.captured.run("CREATE TABLE other (id int PRIMARY KEY)")
    replica.follow(PARK)
    replica.target.execute(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (v < 100)")
    replica.captured.run(f"INSERT INTO {table} VALUES (1, 1000)")
    assert [*replica.follow(PARK).parked] == [table if "." in table else f"public.{table}"]


def come_back(replica: Replica, table: str) -> None:
    replica.target.execute(f"ALTER TABLE {table} DROP CONSTRAINT small")
    replica.resume()
    assert not replica.apply(PARK).parked
    assert schema_of(replica.target) == schema_of(replica.captured.database)


def test_a_parked_table_that_is_renamed(replica: Replica) -> None:
    parked(replica, "t")
    replica.captured.run("ALTER TABLE t RENAME TO u;\nINSERT INTO u VALUES (2, 2);\n")
    replica.captured.run("INSERT INTO other VALUES (1)")
    assert sorted(replica.follow(PARK).parked) == ["public.t", "public.u"]
    replica.check_equal("other")
    come_back(replica, "t")
    replica.check_equal("u", "other")


def test_what_is_no_table_s_own_is_not_done_again(replica: Replica) -> None:
    """Types and domains change for all tables at once, parked or not."""
    parked(replica, "t", "CREATE TYPE mood AS ENUM ('calm')", "CREATE DOMAIN depth AS int")
    replica.captured.run(
        """ALTER TABLE t ADD COLUMN m mood, ADD COLUMN s depth;
ALTER TABLE other ADD COLUMN m mood;
ALTER TYPE mood ADD VALUE 'wild';
ALTER DOMAIN depth ADD CONSTRAINT more CHECK (VALUE > 0);
INSERT INTO t VALUES (2, 2, 'wild', 1);
INSERT INTO other VALUES (1, 'wild');
"""
    )
    replica.follow(PARK)
    replica.check_equal("other")
    come_back(replica, "t")
    replica.check_equal("t", "other")


def test_a_schema_of_a_parked_table(replica: Replica) -> None:
    parked(replica, "app.t", "CREATE SCHEMA app")
    replica.captured.run("ALTER SCHEMA app RENAME TO shop;\nINSERT INTO shop.t VALUES (2, 2);\n")
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow(PARK)
    assert "The table shop.t is parked: resume it first" in caught.value.detail
    come_back(replica, "app.t")
    replica.check_equal("shop.t")


def test_a_schema_of_a_table_that_was_parked_by_the_history(replica: Replica) -> None:
    """What was asked for comes first: the history goes no further without it."""
    ours = {**PARK, "batch": "1MB"}
    ddl = ["!*", "schema"]
    replica.target.execute("CREATE SCHEMA app")
    replica.target.execute("CREATE TABLE app.t (id int PRIMARY KEY, v int)")
    replica.target.execute("ALTER TABLE app.t ADD CONSTRAINT small CHECK (v < 100)")
    replica.target.execute("CREATE TABLE other (id int PRIMARY KEY, v text)")
    replica.captured.run("CREATE SCHEMA IF NOT EXISTS app;\n")
    replica.captured.run("CREATE TABLE app.t (id int PRIMARY KEY, v int);\n")
    replica.captured.run("CREATE TABLE other (id int PRIMARY KEY, v text);\n")
    replica.captured.run("INSERT INTO app.t VALUES (1, 1000);\n")
    many = "INSERT INTO other SELECT n, sha256(n::text::bytea) FROM generate_series({}, {}) n;\n"
    for begin in (1, 40_001):
        replica.captured.run(many.format(begin, begin + 39_999))
        replica.captured.capture()
    replica.captured.run("ALTER SCHEMA app RENAME TO shop;\nINSERT INTO shop.t VALUES (2, 2);\n")
    with pytest.raises(TargetError, match="cannot be replayed"):
        replica.follow(ours, ddl=ddl)
    replica.target.execute("ALTER TABLE app.t DROP CONSTRAINT small")
    replica.resume()
    replica.apply(ours, ddl=ddl)
    replica.check_equal("shop.t", "other")


def test_a_command_that_a_table_cannot_come_back_by(replica: Replica) -> None:
    """The error says to skip it: it is applied for others, and not for that table."""
    parked(replica, "t")
    replica.target.execute("CREATE TABLE taken (id int)")
    replica.captured.run("CREATE INDEX taken ON t (v);\nINSERT INTO other VALUES (1);\n")
    replica.follow(PARK)
    replica.target.execute("ALTER TABLE t DROP CONSTRAINT small")
    replica.resume()
    with pytest.raises(TargetError, match="fails at the target") as caught:
        replica.apply(PARK)
    (position,) = (event.position for event in replica.captured.events("ddl")[-1:])
    assert f"pgtide skip --pipeline {PIPELINE} {position}" in caught.value.hint
    with connect(replica.target.url, autocommit=True) as connection:
        assert not skip(connection, replica.captured.log, PIPELINE, position).again
        assert not replica.apply(PARK).parked
        with pytest.raises(ConfigError, match="is applied already"):
            skip(connection, replica.captured.log, PIPELINE, position)
    replica.check_equal("t", "other")


def test_an_index_that_came_and_went(replica: Replica) -> None:
    """DROP INDEX does not say of which table it was: there was nothing to drop when it came."""
    parked(replica, "t")
    replica.captured.run(
        """CREATE UNIQUE INDEX once ON t (v);
DROP INDEX once;
CREATE INDEX kept ON t (v);
CREATE UNIQUE INDEX ON t (v);
DROP INDEX t_v_idx;
DROP INDEX kept;
CREATE INDEX kept ON t (id, v);
INSERT INTO t VALUES (2, 1000);
"""
    )
    replica.follow(PARK)
    come_back(replica, "t")
    replica.check_equal("t")
