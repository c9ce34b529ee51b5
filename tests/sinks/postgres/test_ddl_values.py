"""Values that DDL gives to rows: those of the source, at once or with the reads that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pgtide.errors import TargetError
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.sinks.postgres.ddl_replica import (
    Replica,
    capture_all,
    rows_of,
    run_script,
    second_database,
)
from tests.sinks.postgres.ddl_scripts import ITEMS, Script

TOKEN = "CREATE DOMAIN token AS uuid DEFAULT gen_random_uuid()"


@pytest.fixture
def target(server: Server) -> Iterator[Database]:
    with second_database(server) as database:
        yield database


def without_reads(captured: Captured, target: Database, script: Script) -> Replica:
    """The target as it is before the rows of a rewritten table have been read again."""
    run_script(captured.database, script)
    capture_all(captured)
    replica = Replica(target)
    replica.apply([event for event in captured.events() if event.op != "read"])
    return replica


def both(captured: Captured, target: Database, query: str) -> list[Any]:
    return [captured.execute(query), target.execute(query)]


@pytest.mark.parametrize(
    "definition",
    [
        "timestamptz DEFAULT now()",
        "timestamptz DEFAULT 'now'",
        "text NOT NULL DEFAULT now()::text",
        "date DEFAULT '2/1/2024'",
        "timestamp DEFAULT '2024-01-01 00:00 Europe/Berlin'::timestamptz",
        "interval DEFAULT age(now(), '2001-02-03')",
        "text[] DEFAULT ARRAY[current_user, 'a\"b\\c', NULL, '{x}']",
        "jsonb DEFAULT jsonb_build_object('at', now(), 'b', 'é')",
        "bytea DEFAULT '\\x00ff'",
        "numeric(10, 2) DEFAULT 1 + 2.5",
        "text DEFAULT ''",
        "text DEFAULT concat('', '')",
        "int DEFAULT NULL",
        "moment",
        "moment NOT NULL",
    ],
)
def test_one_value_for_all_rows_is_that_of_the_source(
    captured: Captured, target: Database, definition: str
) -> None:
    """At a source with other settings than the target's, and without a single read event."""
    moment = "CREATE DOMAIN moment AS timestamptz DEFAULT now()"
    settings = "SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo'"
    added = f"ALTER TABLE items ADD COLUMN c {definition}"
    replica = without_reads(captured, target, [*ITEMS, moment, f"{settings}; {added}"])
    assert replica.replays[-1].refreshed == ()
    assert rows_of(target) == rows_of(captured.database)
    default = "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef"
    source, copy = both(captured, target, default + " WHERE adrelid = 'items'::regclass")
    assert copy == source


def test_a_default_is_read_when_the_source_read_it(captured: Captured, target: Database) -> None:
    without_reads(
        captured,
        target,
        [
            "CREATE TABLE t (id int PRIMARY KEY, a timestamptz DEFAULT 'now', b text DEFAULT 'now',"
            " c date)",
            "SET datestyle = 'SQL, DMY'; ALTER TABLE t ALTER c SET DEFAULT '2/1/2024'",
        ],
    )
    query = "SELECT adnum, pg_get_expr(adbin, adrelid) FROM pg_attrdef"
    query += " WHERE adrelid = 't'::regclass ORDER BY 1"
    source, copy = both(captured, target, query)
    assert copy == source
    assert "now" not in source[0][1]


def test_values_of_each_row_follow(captured: Captured, target: Database) -> None:
    script: Script = [
        *ITEMS,
        "ALTER TABLE items ADD COLUMN token uuid NOT NULL DEFAULT gen_random_uuid()",
        "UPDATE items SET name = 'new' WHERE id = 2",
    ]
    replica = without_reads(captured, target, script)
    assert replica.replays[-1].refreshed == (("public", "items"),)
    assert replica.replays[-1].emptied == ()
    # There, not null, and not yet what the source has, but for the row that changed since.
    source, copy = both(captured, target, "SELECT id, token FROM items ORDER BY 1")
    assert [a == b for a, b in zip(source, copy, strict=True)] == [False, True, False]
    replica.apply(captured.events("read"))
    assert rows_of(target) == rows_of(captured.database)


@pytest.mark.parametrize(
    "added",
    [
        "ADD COLUMN n serial UNIQUE",
        "ADD COLUMN n int GENERATED ALWAYS AS IDENTITY, ADD CONSTRAINT u UNIQUE (n)",
        "DROP CONSTRAINT items_pkey, ADD COLUMN n uuid DEFAULT gen_random_uuid() PRIMARY KEY",
        "ADD COLUMN n token UNIQUE",
    ],
)
def test_rows_that_reads_could_not_replace_are_taken_out(
    captured: Captured, target: Database, added: str
) -> None:
    script: Script = [*ITEMS, TOKEN, "UPDATE items SET price = 1 WHERE id = 1"]
    replica = without_reads(captured, target, [*script, f"ALTER TABLE items {added}"])
    assert replica.replays[-1].emptied == (("public", "items"),)
    assert target.execute("SELECT count(*) FROM items") == [(0,)]
    replica.apply(captured.events("read"))
    assert rows_of(target) == rows_of(captured.database)


def test_rows_that_others_refer_to_are_not_taken_out(captured: Captured, target: Database) -> None:
    script: Script = [
        *ITEMS,
        "CREATE TABLE parts (id int PRIMARY KEY, item int REFERENCES items ON DELETE CASCADE)",
        "INSERT INTO parts VALUES (1, 1)",
        "ALTER TABLE items ADD COLUMN n serial UNIQUE",
    ]
    with pytest.raises(TargetError, match="fails at the target") as caught:
        without_reads(captured, target, script)
    assert "referenced in a foreign key" in caught.value.detail


KEYLESS: Script = [TOKEN, "CREATE TABLE heap (a text)", "INSERT INTO heap VALUES ('1'), ('2')"]


@pytest.mark.parametrize(
    "altered",
    [
        "ADD COLUMN n serial",
        "ADD COLUMN u uuid DEFAULT gen_random_uuid()",
        "ADD COLUMN u token",
        "ALTER COLUMN a TYPE timestamptz USING CURRENT_TIMESTAMP",
        "ALTER COLUMN a TYPE float8 USING random()",
        "ALTER COLUMN a TYPE date USING ('2024-01-0' || a)::date",
    ],
)
def test_rows_without_a_key_are_not_made_up(
    captured: Captured, target: Database, altered: str
) -> None:
    with pytest.raises(TargetError, match="values that only the source has") as caught:
        without_reads(captured, target, [*KEYLESS, f"ALTER TABLE heap {altered}"])
    assert "public.heap has no key" in caught.value.detail


def test_rows_without_a_key_that_the_target_computes(captured: Captured, target: Database) -> None:
    without_reads(
        captured,
        target,
        [
            *KEYLESS,
            "ALTER TABLE heap ALTER COLUMN a TYPE bigint USING length(a) + 1",
            "ALTER TABLE heap ADD COLUMN b bigint GENERATED ALWAYS AS (a * 2) STORED",
            "ALTER TABLE heap ADD COLUMN at timestamptz DEFAULT now()",
            "CREATE DOMAIN size AS int DEFAULT 3 CHECK (value > 0)",
            "CREATE DOMAIN name AS text DEFAULT 'none' CHECK (value <> '')",
            "CREATE DOMAIN mark AS int CHECK (value > 0)",
            "ALTER TABLE heap ADD size size, ADD name name, ADD mark mark",
            "CREATE TABLE none (a int)",
            "ALTER TABLE none ADD COLUMN n serial",
        ],
    )
    assert rows_of(target) == rows_of(captured.database)
