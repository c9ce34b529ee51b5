"""``pgtide check`` warns where partitions have keys of their own that do not tell rows apart."""

from __future__ import annotations

import pytest

from pgtide.config import Pipeline
from pgtide.postgres.connection import connect
from pgtide.postgres.partition_keys import check_partition_keys
from tests.fixtures.databases import Database

TABLES = """
CREATE TABLE own (region text, id int NOT NULL) PARTITION BY LIST (region);
CREATE TABLE own_n PARTITION OF own (PRIMARY KEY (id)) FOR VALUES IN ('n');
CREATE TABLE own_s PARTITION OF own FOR VALUES IN ('s');
CREATE TABLE "By Index" (at date NOT NULL, id int NOT NULL, PRIMARY KEY (at, id))
    PARTITION BY RANGE (at);
CREATE TABLE index_1 (id int NOT NULL UNIQUE, at date NOT NULL);
ALTER TABLE index_1 REPLICA IDENTITY USING INDEX index_1_id_key;
ALTER TABLE "By Index" ATTACH PARTITION index_1 FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE deep (region text, id int NOT NULL) PARTITION BY LIST (region);
CREATE TABLE deep_n PARTITION OF deep FOR VALUES IN ('n') PARTITION BY HASH (id);
CREATE TABLE deep_n_0 PARTITION OF deep_n (PRIMARY KEY (id))
    FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE tens (id int NOT NULL, n int) PARTITION BY RANGE ((n / 10));
CREATE TABLE tens_1 PARTITION OF tens (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10);
CREATE TABLE computed (id int NOT NULL) PARTITION BY RANGE ((id / 10));
CREATE TABLE computed_1 PARTITION OF computed (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (10);
CREATE TABLE good (region text, id int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE good_n PARTITION OF good FOR VALUES IN ('n');
CREATE TABLE divided (region text, id int) PARTITION BY LIST (region);
CREATE TABLE divided_n (id int, region text, PRIMARY KEY (region, id));
ALTER TABLE divided ATTACH PARTITION divided_n FOR VALUES IN ('n');
CREATE TABLE waits (region text, id int) PARTITION BY LIST (region);
CREATE TABLE waits_n PARTITION OF waits (PRIMARY KEY (id) DEFERRABLE) FOR VALUES IN ('n');
CREATE TABLE plain (id int PRIMARY KEY);
"""


def warned(database: Database, **pipeline: object) -> list[str]:
    chosen = Pipeline.model_validate(pipeline)
    with connect(database.url, application_name="test") as connection:
        return [check.message for check in check_partition_keys(connection, {"lake": chosen})]


def test_keys_that_are_unique_in_a_partition_only(database: Database) -> None:
    check(database)


@pytest.mark.slow
@pytest.mark.versions
def test_every_release(version_database: Database) -> None:
    check(version_database)


def check(database: Database) -> None:
    database.execute(TABLES)
    lake = {"type": "delta", "path": "lake"}
    found = warned(database, sink=lake)
    tables = [text.partition("partitions of public.")[2].partition(":")[0] for text in found]
    assert tables == ["By Index", "deep", "own", "tens"]
    assert "the key of public.own_n does not tell its rows from those of other" in found[2]
    assert len(warned(database, sink={**lake, "mode": "scd2"}, tables=["public.own"])) == 1
    assert not warned(database, sink={**lake, "mode": "history"})
    assert not warned(database, sink=lake, tables=["public.own_n", "public.good"])
    assert not warned(database, sink={"type": "postgres", "url": database.url})
