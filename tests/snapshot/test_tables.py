"""Tables of every kind: all of their published rows, once, as the stream would send them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from pgtide.errors import ConfigError, PrivilegeMissing
from pgtide.position import Lsn
from pgtide.snapshot.progress import SnapshotProgress
from pgtide.snapshot.task import Copier
from tests.fixtures.capture import Captured, MakeCaptured, flushed
from tests.fixtures.databases import Database
from tests.snapshot.taking import final_message, reads, source, take
from tests.spark.test_codecs import MADE, ROUND_TRIPS

NOW = datetime.now(UTC)


def test_odd_tables(make_captured: MakeCaptured, database: Database, spark: SparkSession) -> None:
    columns = ", ".join(f"c{n} int DEFAULT {n}" for n in range(1599))
    database.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
    database.execute("INSERT INTO wide (id) VALUES (1), (2)")
    database.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    database.execute("CREATE TABLE nothing ()")
    database.execute("INSERT INTO nothing DEFAULT VALUES")
    database.execute('CREATE SCHEMA "Odd.Schema"')
    database.execute('CREATE TABLE "Odd.Schema"."Ta""ble\'s" ("a b" int PRIMARY KEY, "%s" text)')
    database.execute('INSERT INTO "Odd.Schema"."Ta""ble\'s" VALUES (1, E\'tab\\tnew\\n\\\\\')')
    database.execute("CREATE TABLE keyless (n int)")
    database.execute("INSERT INTO keyless VALUES (1), (1), (2)")
    database.execute(
        "CREATE TABLE sums (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c int)"
    )
    database.execute("INSERT INTO sums (a, c) VALUES (1, 3)")
    captured = make_captured(database, snapshot="initial", keyless="full")
    take(captured, spark)
    captured.check_log()
    wide = [[str(key), *map(str, range(1599))] for key in (1, 2)]
    assert reads(captured, "wide") == wide
    assert reads(captured, "empty") == []
    assert reads(captured, "nothing") == [[]]
    assert reads(captured, "Ta\"ble's") == [["1", "tab\tnew\n\\"]]
    assert reads(captured, "keyless") == [["1"], ["1"], ["2"]]
    published = [["1", "2", "3"]] if captured_generated(captured) else [["1", "3"]]
    assert reads(captured, "sums") == published
    counts = final_message(captured)["tables"]
    assert (counts["public.wide"], counts["public.empty"], counts["public.keyless"]) == (2, 0, 3)
    # The stream goes on with the same shapes.
    shapes = len(captured.log.shapes())
    for table in ("wide (id)", "empty (id)", '"Odd.Schema"."Ta""ble\'s" ("a b")', "sums (a)"):
        database.execute(f"INSERT INTO {table} VALUES (9)")
    captured.capture()
    assert len(captured.log.shapes()) == shapes


def captured_generated(captured: Captured) -> bool:
    ((version,),) = captured.execute("SELECT current_setting('server_version_num')::int")
    return bool(version >= 180_000)


def test_every_type_reads_as_it_streams(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(MADE)
    longest = max(len(literals) for _, literals in ROUND_TRIPS.values())
    columns = ", ".join(f"c{n} {name}" for n, name in enumerate(ROUND_TRIPS))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    for row in range(longest):
        values = [list(literals) for _, literals in ROUND_TRIPS.values()]
        texts = [each[row] if row < len(each) else None for each in values]
        marks = ", ".join(
            f"%s::{name}" if text is not None else "%s"
            for name, text in zip(ROUND_TRIPS, texts, strict=True)
        )
        database.execute(f"INSERT INTO t VALUES ({row}, {marks})", texts)
    captured = make_captured(database, snapshot="initial")
    take(captured, spark)
    names = ", ".join(f"c{n}" for n in range(len(ROUND_TRIPS)))
    database.execute(f"INSERT INTO t SELECT id + 1000, {names} FROM t")
    captured.capture()
    rows = captured.check_log()
    read = {row["after"][0]: row["after"][1:] for row in rows if row["op"] == "read"}
    sent = {row["after"][0]: row["after"][1:] for row in rows if row["op"] == "insert"}
    assert len(read) == longest
    assert {str(int(key) + 1000): value for key, value in read.items()} == sent


def test_never_analysed_and_full_of_dead_rows(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text) WITH (autovacuum_enabled = off)"
    )
    database.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 4000) n")
    database.execute("DELETE FROM t WHERE id % 100 <> 0")
    database.execute("UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE relname = 't'")
    captured = make_captured(database, snapshot="initial")
    progress = take(captured, spark, chunk_bytes="64kB")
    assert progress.tables["public.t"].bytes > 20 * 65536
    assert len(reads(captured, "t")) == 40
    assert reads(captured, "t") == source(captured, "SELECT id::text, pad FROM t")


def test_partitions_and_children_are_read_once(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE p (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute(
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id)"
    )
    database.execute("CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (10, 11)")
    database.execute(
        "INSERT INTO p SELECT n, 'n' FROM generate_series(1, 11) n WHERE n < 10 OR n > 9"
    )
    database.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    database.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    database.execute("INSERT INTO parent VALUES (1)")
    database.execute("INSERT INTO child VALUES (2)")
    captured = make_captured(database, snapshot="initial")
    assert take(captured, spark).left_out == ()
    captured.check_log()
    assert len(reads(captured, "p1")) == 9
    assert reads(captured, "p2a") == [["10", "n"], ["11", "n"]]
    assert reads(captured, "p") == reads(captured, "p2") == []
    assert reads(captured, "parent") == [["1"]]
    assert reads(captured, "child") == [["2"]]
    shapes = captured.log.shapes()
    roots = {shapes[row["shape"]].root_table for row in captured.rows() if row["table"] == "p2a"}
    assert roots == {"p"}


def publish(captured: Captured, definition: str) -> None:
    """Replace the publication as a DBA would, and have its record say so."""
    slot = captured.config.source.slot
    captured.execute(f"DROP PUBLICATION {slot}")
    captured.execute(f"CREATE PUBLICATION {slot} {definition}")
    captured.execute("DELETE FROM pgtide.settings WHERE key LIKE %s", [f"%{slot}%"])


def test_partitions_that_are_published_as_their_root(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE p (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE p2 (note text, id int NOT NULL)")
    database.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)")
    database.execute("INSERT INTO p SELECT n, 'n' || n FROM generate_series(1, 11) n")
    captured = make_captured(database, snapshot="initial")
    publish(captured, "FOR TABLE p WITH (publish_via_partition_root)")
    take(captured, spark)
    assert reads(captured, "p") == source(captured, "SELECT id::text, note FROM p")
    assert reads(captured, "p1") == reads(captured, "p2") == []


def test_column_lists_and_row_filters(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    ((version,),) = database.execute("SELECT current_setting('server_version_num')::int")
    if version < 150_000:
        pytest.skip("column lists and row filters came with 15")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, secret text, note text)")
    database.execute("INSERT INTO t SELECT n, 'hidden', 'n' FROM generate_series(1, 9) n")
    captured = make_captured(database, snapshot="initial")
    publish(captured, "FOR TABLE t (id, note) WHERE (id > 4 OR id = 2)")
    take(captured, spark)
    assert reads(captured, "t") == [[str(n), "n"] for n in (2, 5, 6, 7, 8, 9)]
    database.execute("UPDATE t SET note = 'changed', secret = 'hidden' WHERE id = 5")
    captured.capture()
    assert "hidden" not in repr(captured.rows())
    shapes = {event.shape for event in captured.events("read", "update")}
    assert len(shapes) == 1, "what is streamed has the columns of what was read"
    (shape,) = shapes
    assert shape is not None
    assert [column.attnum for column in shape.columns] == [1, 3]


def test_what_is_no_table_is_left_out_and_said(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE VIEW v AS SELECT * FROM t")
    database.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    database.execute("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    database.execute("CREATE FOREIGN DATA WRAPPER nowhere")
    database.execute("CREATE SERVER far FOREIGN DATA WRAPPER nowhere")
    database.execute("CREATE FOREIGN TABLE f (id int) SERVER far")
    captured = make_captured(database, snapshot="initial", tables=["public.*"])
    progress = take(captured, spark)
    assert progress.left_out == (
        "foreign table public.f",
        "materialized view public.m",
        "unlogged table public.u",
        "view public.v",
    )
    assert list(progress.tables) == ["public.t"]


def test_tables_that_the_role_may_not_read(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE SCHEMA closed")
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute('CREATE TABLE closed."T" (id int PRIMARY KEY)')
    database.execute("INSERT INTO t VALUES (1)")
    url = database.create_role("LOGIN REPLICATION")
    captured = make_captured(database, url=url, admin_url=database.url, snapshot="initial")
    with pytest.raises(PrivilegeMissing, match="may not read") as caught:
        take(captured, spark)
    assert "public.t" in caught.value.detail
    assert "closed.T" in caught.value.detail
    for grant in caught.value.hint.partition("run: ")[2].split(";"):
        if grant.strip():
            database.execute(grant)
    take(captured, spark)
    assert reads(captured, "t") == [["1"]]


def test_row_level_security_is_an_error_not_a_subset(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY few ON t USING (id = 1)")
    url = database.create_role("LOGIN REPLICATION")
    captured = make_captured(database, url=url, admin_url=database.url, snapshot="initial")
    database.execute("GRANT SELECT ON t TO PUBLIC")
    with pytest.raises(PrivilegeMissing, match="row-level security") as caught:
        take(captured, spark)
    database.execute(caught.value.hint.partition("run: ")[2])
    take(captured, spark)
    assert reads(captured, "t") == [["1"], ["2"]]


def test_some_tables_and_some_rows(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    for name in ("a", "b"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        database.execute(f"INSERT INTO {name} SELECT generate_series(1, 5)")
    captured = make_captured(database, snapshot="initial")
    database.execute("INSERT INTO b VALUES (6)")
    flushed(database)
    with pytest.raises(ConfigError, match="no captured table matches"):
        take(captured, spark, "c")
    with pytest.raises(ConfigError, match="not understood"):
        take(captured, spark, where={"public.a": "nonsense > 1"})
    with pytest.raises(ConfigError, match="which is not read"):
        take(captured, spark, "a", where={"public.b": "true"})
    take(captured, spark, "a", where={"public.a": "id > 3 -- the newest"})
    assert reads(captured, "a") == [["4"], ["5"]]
    assert reads(captured, "b") == []
    # What the other table did since the slot was made is in the log all the same.
    assert captured.changes("b") == [("insert", None, {"id": "6"})]
    captured.check_log()


def test_passwords_stay_where_they_are(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1)")
    url = database.create_role("LOGIN REPLICATION SUPERUSER")
    password = conninfo_to_dict(url)["password"]
    assert password
    captured = make_captured(database, url=url, admin_url=database.url, snapshot="initial")
    seen: list[str] = []

    def look(progress: SnapshotProgress) -> None:
        if progress.stage == "copying":
            lines = Path("/proc").glob("[0-9]*/cmdline")
            seen.extend(text for path in lines if (text := _read(path)) and str(password) in text)

    take(captured, spark, on_progress=look)
    assert not seen
    context = spark.sparkContext
    assert str(password) not in repr(context.getConf().getAll())
    store = context._jsc.sc().statusStore()
    assert str(password) not in store.jobsList(None).toString()
    assert str(password) not in repr(Copier(url, "s", "p", {"key": str(password)}, Lsn(1), NOW))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_condition_needs_a_key(
    make_captured: MakeCaptured, database: Database, spark: SparkSession
) -> None:
    database.execute("CREATE TABLE keyless (n int)")
    captured = make_captured(database, snapshot="initial", keyless="full")
    with pytest.raises(ConfigError, match="no primary key"):
        take(captured, spark, where={"public.keyless": "n > 1"})
