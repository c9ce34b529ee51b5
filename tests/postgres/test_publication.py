"""Which publication is chosen, and how changes to it are noticed."""

from __future__ import annotations

from typing import Any

import pytest

from pgtide.config import TablePatterns
from pgtide.errors import IdentityMissing, PrivilegeMissing
from pgtide.postgres.connection import connect
from pgtide.postgres.fingerprint import changes_since, fingerprint
from pgtide.postgres.publication import (
    Choice,
    choose,
    create_sql,
    insert_name,
    matches,
    publication_names,
    replace_sql,
)
from tests.fixtures.databases import Database

KEYED = "CREATE TABLE keyed (id int PRIMARY KEY);"
KEYLESS = "CREATE TABLE keyless (x int);"


def chosen(database: Database, *patterns: str, url: str = "", **policy: Any) -> Choice:
    options = {"keyless": "refuse", "guarded": True, **policy}
    with connect(url or database.url) as conn:
        version = conn.info.server_version
        return choose(conn, "tide", TablePatterns(patterns or ["*.*"]), version=version, **options)


def names(choice: Choice) -> list[tuple[str, list[str]]]:
    return [(p.scope, [table.table for table in p.tables]) for p in choice.publications]


def test_everything_or_schemas(database: Database) -> None:
    database.execute(KEYED)
    assert names(chosen(database)) == [("all", [])]
    assert names(chosen(database, "*.keyed")) == [("all", [])]
    assert names(chosen(database, "later.*", "public.*")) == [("all", [])]
    if database.execute("SHOW server_version_num")[0][0] >= "150000":
        (publication,) = chosen(database, "public.*").publications
        assert (publication.scope, publication.schemas) == ("schemas", ("public",))


def test_refuse_names_tables_and_statements(database: Database) -> None:
    database.execute(KEYED + KEYLESS + 'CREATE TABLE "Odd Name" (x int)')
    with pytest.raises(IdentityMissing) as caught:
        chosen(database)
    assert "public.keyless" in caught.value.detail
    assert 'ALTER TABLE "public"."Odd Name" REPLICA IDENTITY FULL;' in caught.value.hint


def test_full_alters_what_the_publication_covers(database: Database) -> None:
    database.execute(KEYED + KEYLESS)
    choice = chosen(database, keyless="full")
    assert names(choice) == [("all", [])]
    assert [table.table for table in choice.full] == ["keyless"]


def test_insert_splits_in_two_lists(database: Database) -> None:
    database.execute(
        KEYED
        + KEYLESS
        + "CREATE TABLE p (id int) PARTITION BY LIST (id);"
        + "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"
    )
    choice = chosen(database, keyless="insert")
    assert names(choice) == [("tables", ["keyed"]), ("tables", ["keyless", "p"])]
    assert choice.publications[1].publish == "insert, truncate"
    for publication in choice.publications:
        database.execute(create_sql(publication, _version(database)))
    database.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET x = 2; DELETE FROM p")


def test_insert_without_keyless_tables_stays_wide(database: Database) -> None:
    database.execute(KEYED)
    assert names(chosen(database, keyless="insert")) == [("all", [])]


def test_excluded_keyless_table_is_not_touched(database: Database) -> None:
    database.execute(KEYED + KEYLESS)
    choice = chosen(database, "*.*", "!*.keyless")
    assert names(choice) == [("tables", ["keyed"])]
    assert "public.keyless" in choice.notes[0]


def test_without_the_trigger_only_a_list_is_safe(database: Database) -> None:
    database.execute(KEYED)
    choice = chosen(database, guarded=False)
    assert names(choice) == [("tables", ["keyed"])]
    assert "DDL trigger" in choice.notes[0]


def test_list_names_roots_and_not_inheritance_children(database: Database) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);"
        " CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        " CREATE TABLE parent (id int PRIMARY KEY);"
        " CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)"
    )
    choice = chosen(database, "public.p", "public.parent", guarded=False)
    assert names(choice) == [("tables", ["p", "parent"])]
    database.execute(create_sql(choice.publications[0], _version(database)))
    assert database.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1") == [
        ("p1",),
        ("parent",),
    ]


def test_role_that_may_not_publish_everything_gets_a_list(database: Database) -> None:
    url = database.create_role()
    role = database.roles[-1]
    database.execute(f"{KEYED} ALTER TABLE keyed OWNER TO {role}")
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {role}")
    choice = chosen(database, url=url)
    assert names(choice) == [("tables", ["keyed"])]
    assert "may not create FOR ALL TABLES" in choice.notes[0]
    assert database.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    database.execute("CREATE TABLE foreign_one (id int PRIMARY KEY)")
    with pytest.raises(PrivilegeMissing, match="may not publish"):
        chosen(database, url=url)
    database.execute(f"REVOKE ALL ON DATABASE {database.name} FROM {role}")


def test_options(database: Database) -> None:
    version = _version(database)
    database.execute(create_sql(chosen(database).publications[0], version))
    with connect(database.url) as conn:
        (current,) = fingerprint(conn, ["tide"]).values()
        assert matches(chosen(database).publications[0], current, version)
    assert current["options"]["pubviaroot"] is False
    assert current["options"].get("pubgencols") == ("s" if version >= 180_000 else None)


def test_replacing_keeps_one_publication_at_all_times(database: Database) -> None:
    database.execute(KEYED + "CREATE PUBLICATION tide FOR TABLE keyed")
    version = _version(database)
    wanted = chosen(database).publications[0]
    with connect(database.url) as conn:
        for statement in replace_sql(wanted, version, fingerprint(conn, ["tide"])["tide"]):
            conn.execute(statement.encode())
        assert matches(wanted, fingerprint(conn, ["tide"])["tide"], version)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP PUBLICATION tide", "is gone"),
        ("DROP PUBLICATION tide; CREATE PUBLICATION tide FOR TABLE a, b", "created again"),
        ("ALTER PUBLICATION tide DROP TABLE b", "tables were removed: public.b"),
        ("ALTER PUBLICATION tide ADD TABLE c", "tables were added"),
        ("ALTER PUBLICATION tide SET (publish = 'insert')", "pubupdate is now False"),
        ("ALTER PUBLICATION tide SET (publish_via_partition_root = true)", "pubviaroot"),
        ("DROP TABLE b", ""),
        ("ALTER TABLE b RENAME TO bb", ""),
        ("CREATE TABLE d ()", ""),
    ],
)
def test_foreign_changes_are_noticed(database: Database, change: str, told: str) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        " CREATE TABLE c (id int PRIMARY KEY); CREATE PUBLICATION tide FOR TABLE a, b"
    )
    with connect(database.url) as conn:
        before = fingerprint(conn, ["tide"])
        assert changes_since(conn, before) == []
        database.execute(change)
        found = changes_since(conn, before)
    assert (told in "\n".join(found)) if told else not found


def test_row_filters_are_noticed(database: Database) -> None:
    if _version(database) < 150_000:
        pytest.skip("row filters came with Postgres 15")
    database.execute(KEYED + "CREATE PUBLICATION tide FOR TABLE keyed")
    with connect(database.url) as conn:
        before = fingerprint(conn, ["tide"])
        database.execute("ALTER PUBLICATION tide SET TABLE keyed WHERE (id > 5)")
        assert "row filters" in changes_since(conn, before)[0]


def test_names(database: Database) -> None:
    assert insert_name("tide") == "tide_insert"
    assert len(insert_name("x" * 63)) == 63
    database.execute(
        "CREATE PUBLICATION tide_insert; CREATE PUBLICATION tide; CREATE PUBLICATION o"
    )
    with connect(database.url) as conn:
        assert publication_names(conn, "tide") == ["tide", "tide_insert"]


def _version(database: Database) -> int:
    return int(database.execute("SHOW server_version_num")[0][0])
