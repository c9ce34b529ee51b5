"""What rules hide is not brought to the target by DDL: in its catalog, or under another name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgtide.errors import PipelineError, TargetError
from pgtide.postgres.connection import connect
from pgtide.postgres.embedded import BUNDLED, bundled_bin_dir
from pgtide.sinks.postgres.ddl_names import Names
from pgtide.sinks.postgres.ddl_payload import TableName
from pgtide.sinks.postgres.skipping import skip
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database, Server
from tests.sinks.postgres import ddl_replica
from tests.sinks.postgres.ddl_replica import run_script, second_database
from tests.sinks.postgres.ddl_scripts import Script
from tests.sinks.postgres.replicas import PIPELINE, Replica

SECRET = "1234-5678-9012"


def hidden(table: TableName) -> frozenset[str]:
    return frozenset({"number", "serial"} if table[1] in ("cards", "copy") else ())


def alike(one: TableName, other: TableName) -> bool:
    return hidden(one) == hidden(other)


NAMES = Names(hidden=hidden, alike=alike)


@pytest.fixture
def second(server: Server) -> Iterator[Database]:
    with second_database(server) as database:
        yield database


def everything_in(database: Database) -> str:
    """The catalog and all rows, pgtide's own included."""
    program = str(bundled_bin_dir(max(BUNDLED)) / "pg_dump")
    return subprocess.run(
        [program, database.url], check=True, capture_output=True, text=True
    ).stdout


DEFAULTS: Script = [
    f"CREATE TABLE cards (id int PRIMARY KEY, number text NOT NULL DEFAULT '{SECRET}',"
    " serial serial, n int DEFAULT 3)",
    "ALTER TABLE cards ALTER number SET DEFAULT '1', ALTER n SET DEFAULT 4",
    f"ALTER TABLE cards ALTER number SET DEFAULT '{SECRET}'",
    "CREATE TABLE plain (id int PRIMARY KEY, number text DEFAULT 'x')",
    "CREATE TABLE copy (LIKE plain INCLUDING ALL)",
    "CREATE SCHEMA app CREATE TABLE cards (id int PRIMARY KEY, number date DEFAULT 'today')",
    "CREATE TABLE parted (id int PRIMARY KEY, number text) PARTITION BY RANGE (id)",
    "ALTER TABLE parted ALTER number SET DEFAULT 'y'",
]


def test_hidden_columns_have_no_default(captured: Captured, second: Database) -> None:
    run_script(captured.database, DEFAULTS)
    captured.capture()
    ddl_replica.Replica(second, names=NAMES).apply(captured.events())
    found = second.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema IN ('public', 'app') AND column_default IS NOT NULL ORDER BY 1, 2"
    )
    assert found == [("cards", "n"), ("parted", "number"), ("plain", "number")]
    assert SECRET not in everything_in(second)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE cards RENAME TO others",
        "ALTER TABLE others RENAME TO cards",
        "ALTER TABLE cards RENAME number TO digits",
        "ALTER TABLE cards RENAME plain TO serial",
        "ALTER INDEX cards RENAME TO others",
        "ALTER TYPE cards RENAME ATTRIBUTE number TO digits",
    ],
)
def test_names_that_rules_do_not_know(captured: Captured, second: Database, statement: str) -> None:
    table = statement.split()[2]
    captured.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, number text, plain text)")
    captured.execute(statement)
    captured.capture()
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        ddl_replica.Replica(second, names=NAMES).apply(captured.events())
    assert "let the pipeline's rules fit both names" in caught.value.detail


def test_columns_of_a_typed_table(captured: Captured, second: Database) -> None:
    script: Script = [
        "CREATE TYPE card AS (id int, number text)",
        "CREATE TABLE cards OF card (PRIMARY KEY (id))",
        "ALTER TYPE card RENAME ATTRIBUTE number TO digits CASCADE",
    ]
    run_script(captured.database, script)
    captured.capture()
    with pytest.raises(TargetError, match="cannot be replayed"):
        ddl_replica.Replica(second, names=NAMES).apply(captured.events())


@pytest.mark.parametrize(
    "command", [f"ADD COLUMN number text DEFAULT '{SECRET}'", f"ALTER plain SET DEFAULT '{SECRET}'"]
)
def test_defaults_that_a_hidden_column_inherits(
    captured: Captured, second: Database, command: str
) -> None:
    """A command about another table would give them to rows and to the catalog."""
    script: Script = [
        "CREATE TABLE base (id int PRIMARY KEY, plain text)",
        "CREATE TABLE cards (PRIMARY KEY (id)) INHERITS (base)",
        "ALTER TABLE base ADD COLUMN free text DEFAULT 'x'",
        f"ALTER TABLE base {command}",
    ]
    names = replace(NAMES, hidden=lambda table: hidden(table) and hidden(table) | {"plain"})
    run_script(captured.database, script)
    captured.capture()
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        ddl_replica.Replica(second, names=names).apply(captured.events())
    assert "Public.cards inherits a default of column" in caught.value.detail


def test_names_that_rules_know(captured: Captured, second: Database) -> None:
    script: Script = [
        "CREATE TYPE spot AS (number int)",
        "CREATE TABLE cards (id int PRIMARY KEY, number text, at spot)",
        "ALTER TYPE spot RENAME ATTRIBUTE number TO digits",
        "ALTER TABLE cards RENAME id TO key",
        "ALTER TABLE cards RENAME TO copy",
        "CREATE SCHEMA app",
        "ALTER TABLE copy SET SCHEMA app",
        "ALTER SCHEMA app RENAME TO shop",
    ]
    run_script(captured.database, script)
    captured.capture()
    ddl_replica.Replica(second, names=NAMES).apply(captured.events())
    assert second.execute("SELECT count(*) FROM shop.copy") == [(0,)]


def test_a_masked_replica(replica: Replica) -> None:
    """Values that are masked, and rows that are filtered, are nowhere: stages and catalog too."""
    rules = [
        {"table": "*.cards*", "optional": True, "transform": {"column": "number", "mask": {}}},
        {"table": "*.cards*", "filter": {"column": "owner", "operator": "ne", "value": "zoe"}},
    ]
    pipeline = {"rules": rules}
    replica.captured.run(
        f"""CREATE TABLE cards (id int PRIMARY KEY, owner text, number text DEFAULT '{SECRET}');
INSERT INTO cards VALUES (1, 'ann'), (2, 'zoe');
UPDATE cards SET owner = 'zoe', number = '{SECRET}' WHERE id = 1;
INSERT INTO cards VALUES (3, 'bob');
ALTER TABLE cards RENAME TO cards_of_old;
ALTER TABLE cards_of_old ALTER number TYPE varchar USING number || 'x';
CREATE TABLE cards (id int PRIMARY KEY, owner text) PARTITION BY RANGE (id);
CREATE TABLE c1 PARTITION OF cards FOR VALUES FROM (0) TO (10);
INSERT INTO cards VALUES (1, 'ann');
ALTER TABLE cards ADD COLUMN number text DEFAULT '{SECRET}';
INSERT INTO cards VALUES (2, 'bob', '{SECRET}');
"""
    )
    ddl_replica.capture_all(replica.captured)
    replica.apply(pipeline)
    masked = "1************2"
    assert replica.rows("cards", "*") == [(1, "ann", masked), (2, "bob", masked)]
    assert replica.rows("cards_of_old", "*") == [(3, "bob", "1*************x")]
    assert SECRET not in everything_in(replica.target)
    added = "ALTER TABLE cards ADD CONSTRAINT cards_number_check CHECK"
    replica.captured.run(f"{added} (number <= '{SECRET}' /* {SECRET} */);\n")
    replica.target.execute(f"{added} (true)")
    with pytest.raises(TargetError, match="fails at the target") as caught:
        replica.follow(pipeline)
    assert caught.value.detail.endswith(f"The statement: {added} (number <= *** )")
    replica.target.execute("ALTER TABLE cards DROP CONSTRAINT cards_number_check")
    replica.captured.run("ALTER TABLE cards DROP CONSTRAINT cards_number_check;\n")
    replica.follow(pipeline)
    replica.captured.run("ALTER TABLE cards DETACH PARTITION c1;\n")
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow(pipeline)
    assert "Rules treat public.cards and public.c1 differently" in caught.value.detail
    assert SECRET not in everything_in(replica.target)


def test_a_filter_that_would_lose_its_column(replica: Replica) -> None:
    """Otherwise an optional one is not applied any more, and what it kept out comes."""
    kept = {"column": "owner", "operator": "ne", "value": "zoe"}
    rule = {"table": "*.cards", "optional": True, "filter": kept}
    replica.captured.run(
        """CREATE TABLE cards (id int PRIMARY KEY, owner text);
INSERT INTO cards VALUES (1, 'ann'), (2, 'zoe');
ALTER TABLE cards RENAME owner TO holder;
INSERT INTO cards VALUES (3, 'zoe');
"""
    )
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow({"rules": [rule]})
    assert "filter by column owner of public.cards, and not as holder" in caught.value.detail
    again = {**rule, "filter": {**kept, "column": "holder"}}
    replica.follow({"rules": [rule, again]})
    assert replica.rows("cards", "*") == [(1, "ann")]


SWAP = """ALTER TABLE cards RENAME number TO other;
ALTER TABLE cards RENAME note TO number;
ALTER TABLE cards RENAME other TO note;
"""


@pytest.mark.parametrize("ddl", [[], ["*"]], ids=["not selected", "skipped"])
def test_a_rename_that_is_not_replayed(replica: Replica, ddl: list[str]) -> None:
    """Somebody does it at the target by hand: then its rows fit, and rules do not."""
    mask = {"table": "*.cards", "optional": True, "transform": {"column": "number", "mask": {}}}
    made = "CREATE TABLE cards (id int PRIMARY KEY, number text, note text)"
    replica.captured.run(made)
    if not ddl:
        replica.target.execute(made)
    replica.follow({"rules": [mask]}, ddl=ddl)
    replica.captured.run(f"{SWAP}INSERT INTO cards (id, note) VALUES (1, '{SECRET}');\n")
    replica.target.execute(SWAP)
    replica.captured.capture()
    with connect(replica.target.url, autocommit=True) as connection:
        for event in replica.captured.events("ddl")[-3:] if ddl else ():
            skip(connection, replica.captured.log, PIPELINE, event.position)
    with pytest.raises(PipelineError, match="a rename would show") as caught:
        replica.apply({"rules": [mask]}, ddl=ddl)
    assert "column public.cards.number became public.cards.other" in caught.value.detail
    assert SECRET not in everything_in(replica.target)
    more = [{**mask, "transform": {"column": name, "mask": {}}} for name in ("other", "note")]
    replica.apply({"rules": [mask, *more]}, ddl=ddl)
    assert replica.rows("cards", "note") == [("1************2",)]


def test_rules_that_come_later(replica: Replica) -> None:
    """What was staged without them does not stay behind, once all rows are as they say."""
    replica.captured.run(
        f"""CREATE TABLE cards (id int PRIMARY KEY, number text, note text);
INSERT INTO cards VALUES (1, '{SECRET}', 'n'), (2, '{SECRET}', 'n');
"""
    )
    masks = [
        {"table": "public.cards", "transform": {"column": column, "mask": {}}}
        for column in ("note", "number")
    ]
    replica.follow({"rules": masks[:1]})
    assert SECRET in everything_in(replica.target)
    replica.captured.run("UPDATE cards SET note = 'other';\n")
    replica.follow({"rules": masks})
    assert replica.rows("cards", "number") == [("1************2",)] * 2
    assert SECRET not in everything_in(replica.target)
