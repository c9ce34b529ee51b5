"""Everything pgoutput sends, from a real server into the log."""

from __future__ import annotations

import psycopg
import pytest

from pgtide.errors import InvalidText
from pgtide.log.event import UNCHANGED
from pgtide.position import Lsn
from pgtide.postgres.embedded import bundled_bin_dir
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database, Server
from tests.fixtures.postgres import MakeServer

GEARS = ("live", "bulk")


@pytest.mark.parametrize("gear", GEARS)
def test_row_events_and_key_changes(make_captured: MakeCaptured, gear: str) -> None:
    captured = make_captured()
    captured.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, a text);
        INSERT INTO t VALUES (1, NULL), (2, ''), (3, 'x');
        UPDATE t SET a = 'y' WHERE id = 3;
        UPDATE t SET id = 4 WHERE id = 3;
        DELETE FROM t WHERE id = 1;
        TRUNCATE t RESTART IDENTITY CASCADE;
        """
    )
    captured.capture(gear)
    assert captured.changes() == [
        ("insert", None, {"id": "1", "a": None}),
        ("insert", None, {"id": "2", "a": ""}),
        ("insert", None, {"id": "3", "a": "x"}),
        ("update", None, {"id": "3", "a": "y"}),
        ("update", {"id": "3"}, {"id": "4", "a": "y"}),
        ("delete", {"id": "1"}, None),
        ("truncate", None, None),
    ]
    (truncate,) = captured.events("truncate")
    assert truncate.payload == {"cascade": True, "restart_identity": True}
    captured.check_log()


def test_replica_identities(captured: Captured) -> None:
    captured.run(
        """
        CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key;
        CREATE TABLE by_row (id int PRIMARY KEY, v text);
        ALTER TABLE by_row REPLICA IDENTITY FULL;
        CREATE TABLE by_nothing (id int, v text);
        ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
        INSERT INTO by_index VALUES (1, 'a', 'x');
        INSERT INTO by_row VALUES (1, NULL);
        INSERT INTO by_nothing VALUES (1, 'x');
        UPDATE by_index SET code = 'b';
        UPDATE by_row SET v = 'y';
        DELETE FROM by_index; DELETE FROM by_row;
        """
    )
    captured.capture()
    assert captured.changes("by_index")[1:] == [
        ("update", {"code": "a"}, {"id": "1", "code": "b", "v": "x"}),
        ("delete", {"code": "b"}, None),
    ]
    assert captured.changes("by_row")[1:] == [
        ("update", {"id": "1", "v": None}, {"id": "1", "v": "y"}),
        ("delete", {"id": "1", "v": "y"}, None),
    ]
    identities = {
        event.table: (event.shape.replica_identity, [c.name for c in event.shape.columns if c.key])
        for event in captured.events("insert")
        if event.shape
    }
    assert identities == {
        "by_index": ("i", ["id"]),
        "by_row": ("f", ["id"]),
        "by_nothing": ("n", []),
    }


def test_unchanged_toast_is_not_null_and_not_a_value(captured: Captured) -> None:
    big = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 5000) n"
    captured.execute(
        f"""
        CREATE TABLE t (id int PRIMARY KEY, n int, big text);
        INSERT INTO t SELECT 1, 1, ({big});
        UPDATE t SET n = 2;
        UPDATE t SET big = NULL;
        """
    )
    captured.capture()
    first, kept, nulled = captured.changes()
    assert len(first[2]["big"]) == 160_000
    assert kept[2] == {"id": "1", "n": "2", "big": UNCHANGED}
    assert nulled[2] == {"id": "1", "n": "2", "big": None}


def test_messages_of_users(captured: Captured) -> None:
    captured.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY);
        BEGIN;
        INSERT INTO t VALUES (1);
        SELECT pg_logical_emit_message(true, 'app', 'inside');
        SELECT pg_logical_emit_message(false, 'app', 'outside'); -- there even if this rolls back
        SELECT pg_logical_emit_message(true, 'app', decode('ff00', 'hex'));
        COMMIT;
        BEGIN; SELECT pg_logical_emit_message(true, 'app', 'never'); ROLLBACK;
        """
    )
    captured.capture()
    messages = [event.payload for event in captured.events("message")]
    assert messages == [
        {"prefix": "app", "transactional": False, "content": "outside"},
        {"prefix": "app", "transactional": True, "content": "inside"},
        {"prefix": "app", "transactional": True, "content_base64": "/wA="},
    ]
    captured.check_log()


def test_values_keep_their_postgres_text(captured: Captured) -> None:
    expressions = {
        "bytea": (r"'\xdeadbeef'::bytea", r"\xdeadbeef"),
        "float8": ("1e300/3*3 + 0.1::float8", None),
        "third": ("(1::float8/3)", "0.3333333333333333"),
        "float4": ("'NaN'::float4", "NaN"),
        "numeric": ("12345678901234567890.123456789::numeric", None),
        "date": ("'2024-02-29'::date", "2024-02-29"),
        "bc": ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        "stamp": ("'2024-01-02 03:04:05.678901'::timestamp", "2024-01-02 03:04:05.678901"),
        "zoned": ("'2024-01-02 03:04:05+09'::timestamptz", "2024-01-01 18:04:05+00"),
        "endless": ("'-infinity'::timestamptz", "-infinity"),
        "interval": ("'1 year 2 mons 3 days 04:05:06'::interval", "1 year 2 mons 3 days 04:05:06"),
        "money": ("12345.6::money", None),
        "json": ("""'{"a":  1, "a": 2}'::json""", '{"a":  1, "a": 2}'),
        "array": ("ARRAY['a,b', NULL, 'NULL', '\"']", r'{"a,b",NULL,"NULL","\""}'),
        "bool": ("true", "t"),
        "enum": ("'so so'::mood", "so so"),
        "domain": ("'x'::label", "x"),
        "composite": ("ROW(1, 'a b')::pair", '(1,"a b")'),
        "range": ("'[1,5)'::int4range", "[1,5)"),
        "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid", None),
    }
    columns = ", ".join(f'{value} AS "{name}"' for name, (value, _) in expressions.items())
    # The database's own settings must not reach the log.
    name = captured.database.name
    captured.execute(
        f"""
        ALTER DATABASE {name} SET timezone = 'Asia/Tokyo';
        ALTER DATABASE {name} SET datestyle = 'German';
        ALTER DATABASE {name} SET intervalstyle = 'iso_8601';
        ALTER DATABASE {name} SET bytea_output = 'escape';
        ALTER DATABASE {name} SET extra_float_digits = -5;
        CREATE TYPE mood AS ENUM ('so so');
        CREATE DOMAIN label AS text;
        CREATE TYPE pair AS (a int, b text);
        """
    )
    captured.execute(f"CREATE TABLE t AS SELECT 1 AS id, {columns}")
    captured.capture("live")
    (live,) = captured.changes()
    captured.execute("INSERT INTO t SELECT * FROM t")
    captured.capture("bulk")
    assert captured.changes()[1] == live
    for name, (_, text) in expressions.items():
        assert text is None or live[2][name] == text, name
    shape = captured.events("insert")[0].shape
    assert shape is not None
    types = {column.name: column.type_name for column in shape.columns}
    assert (types["enum"], types["array"], types["numeric"]) == (
        "public.mood",
        "text[]",
        "numeric",
    )


def test_partitions_are_leaves_that_know_their_root(captured: Captured) -> None:
    captured.run(
        """
        CREATE TABLE sale (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE TABLE sale_24 PARTITION OF sale FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
        CREATE TABLE late (day date NOT NULL, id int NOT NULL, PRIMARY KEY (id, day));
        INSERT INTO sale VALUES (1, '2024-05-05');
        INSERT INTO late VALUES ('2025-05-05', 2);
        ALTER TABLE sale ATTACH PARTITION late FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
        INSERT INTO sale VALUES (3, '2025-06-06');
        UPDATE sale SET day = '2025-07-07' WHERE id = 1;
        ALTER TABLE sale DETACH PARTITION late;
        INSERT INTO late VALUES ('2027-01-01', 4);
        TRUNCATE sale;
        """
    )
    captured.capture()
    seen = [
        (e.op, e.table, e.shape.root_table, (e.after or e.before or {}).get("id"))
        for e in captured.events("insert", "update", "delete", "truncate")
        if e.shape is not None
    ]
    assert seen == [
        ("insert", "sale_24", "sale", "1"),
        ("insert", "late", "", "2"),
        ("insert", "late", "sale", "3"),
        ("delete", "sale_24", "sale", "1"),  # a row that moves is deleted here, inserted there
        ("insert", "late", "sale", "1"),
        ("insert", "late", "", "4"),
        ("truncate", "sale_24", "sale", None),
    ]


def test_names_of_every_kind(captured: Captured) -> None:
    names = ['Mixed "Case"', "größe", "テーブル", "x" * 63, "select", "a.b", "it's", "%s", "$1"]
    for number, name in enumerate(names):
        quoted = '"' + name.replace('"', '""') + '"'
        captured.execute(f"CREATE SCHEMA {quoted}")
        captured.execute(f"CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY)")
        captured.execute(f"INSERT INTO {quoted}.{quoted} VALUES ({number})")
    captured.capture()
    seen = [(e.schema, e.table, e.after) for e in captured.events("insert")]
    assert seen == [(name, name, {name: str(n)}) for n, name in enumerate(names)]


def test_generated_columns_are_not_sent_before_18(captured: Captured) -> None:
    captured.execute(
        """
        CREATE TABLE t (a int PRIMARY KEY, twice int GENERATED ALWAYS AS (a * 2) STORED, b text);
        INSERT INTO t (a, b) VALUES (1, 'x');
        """
    )
    captured.capture()
    assert captured.changes() == [("insert", None, {"a": "1", "b": "x"})]
    (event,) = captured.events("insert")
    assert event.shape is not None
    assert [(c.name, c.attnum) for c in event.shape.columns] == [("a", 1), ("b", 3)]


def test_generated_columns_are_sent_from_18_on(
    make_server: MakeServer, make_captured: MakeCaptured
) -> None:
    server = make_server(bundled_bin_dir(18))
    captured = make_captured(Database.create(server))
    captured.execute(
        """
        CREATE TABLE t (a int PRIMARY KEY, twice int GENERATED ALWAYS AS (a * 2) STORED, b text,
                        thrice int GENERATED ALWAYS AS (a * 3) VIRTUAL);
        INSERT INTO t (a, b) VALUES (1, 'x');
        UPDATE t SET a = 2;
        """
    )
    captured.capture("live")
    after = [after for _, _, after in captured.changes()]
    assert after == [{"a": "1", "twice": "2", "b": "x"}, {"a": "2", "twice": "4", "b": "x"}]
    (shape,) = {e.shape for e in captured.events("insert", "update")}
    assert shape is not None
    assert [c.generated for c in shape.columns] == [False, True, False]


def test_left_out_tables_are_counted(make_captured: MakeCaptured, database: Database) -> None:
    database.execute("CREATE SCHEMA audit; CREATE TABLE audit.keep (id int PRIMARY KEY)")
    captured = make_captured(tables=["*.*", "!audit.*", "!public.tmp_*", "audit.keep"])
    captured.capture()
    captured.run(
        """
        CREATE TABLE kept (id int PRIMARY KEY);
        CREATE TABLE tmp_one (id int PRIMARY KEY);
        CREATE TABLE audit.log (id int PRIMARY KEY);
        BEGIN;
        INSERT INTO audit.log SELECT generate_series(1, 100);
        INSERT INTO kept VALUES (1);
        INSERT INTO tmp_one VALUES (1);
        INSERT INTO audit.keep VALUES (1);
        COMMIT;
        ALTER TABLE tmp_one RENAME TO one;
        INSERT INTO one VALUES (2);
        ALTER TABLE kept RENAME TO tmp_kept;
        INSERT INTO tmp_kept VALUES (2);
        """
    )
    counters = captured.capture().counters
    inserts = [(e.table, e.after) for e in captured.events("insert")]
    assert inserts == [("kept", {"id": "1"}), ("keep", {"id": "1"}), ("one", {"id": "2"})]
    assert counters["filtered_rows"] == 102
    assert counters["filtered_ddl"] == 2
    captured.check_log()


def test_subtransactions_rollbacks_and_empty_transactions(captured: Captured) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.execute(
        """
        BEGIN;
        INSERT INTO t VALUES (1);
        SAVEPOINT a; INSERT INTO t VALUES (2); ROLLBACK TO a;
        SAVEPOINT b; INSERT INTO t VALUES (3); SAVEPOINT c; INSERT INTO t VALUES (4); RELEASE b;
        COMMIT;
        BEGIN; INSERT INTO t VALUES (5); ROLLBACK;
        BEGIN; SELECT pg_current_xact_id(); COMMIT;
        BEGIN; CREATE TEMP TABLE s (id int); INSERT INTO s VALUES (1); COMMIT;
        BEGIN; CREATE UNLOGGED TABLE u (id int); INSERT INTO u VALUES (1); COMMIT;
        INSERT INTO t VALUES (6);
        """
    )
    captured.capture()
    rows = [(e.after or {})["id"] for e in captured.events("insert")]
    assert rows == ["1", "3", "4", "6"]
    lsns = [e.position.lsn for e in captured.events("insert")]
    assert len({*lsns[:3]}) == 1
    captured.check_log()


def test_a_role_with_replica_mode_is_captured_too(captured: Captured) -> None:
    captured.run(
        """
        SET session_replication_role = replica;
        CREATE TABLE t (id int PRIMARY KEY);
        INSERT INTO t VALUES (1);
        ALTER TABLE t ADD COLUMN v text;
        INSERT INTO t VALUES (2, 'x');
        """
    )
    captured.capture()
    assert [e.op for e in captured.events()] == ["ddl", "insert", "ddl", "insert"]
    shapes = [e.shape for e in captured.events("insert")]
    assert [[c.attnum for c in shape.columns] for shape in shapes if shape] == [[1], [1, 2]]


def test_ten_thousand_small_transactions(make_captured: MakeCaptured) -> None:
    """Both gears write the same log, row by row."""
    live, bulk = make_captured(), make_captured()
    live.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    live.execute(
        """
        DO $$ BEGIN FOR n IN 1..5000 LOOP
            INSERT INTO t VALUES (n, repeat('ü', n % 50));
            COMMIT;
            UPDATE t SET v = NULL WHERE id = n / 2;
            COMMIT;
        END LOOP; END $$;
        """
    )
    live.capture("live")
    bulk.capture("bulk")
    theirs = bulk.check_log()
    # The first log begins earlier and has seen the second one's publication being made.
    ours = [row for row in live.check_log() if row["lsn"] >= theirs[0]["lsn"]]
    assert ours == theirs
    assert len(ours) == 2 * 5000 + 1 - 1  # one DDL; the first UPDATE finds no row
    assert live.log.shapes() == bulk.log.shapes()


def test_a_forged_ddl_message_is_a_plain_message(captured: Captured, database: Database) -> None:
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.capture()
    with psycopg.connect(database.create_role(), autocommit=True) as stranger:
        body = '{"v": 1, "xid": 1, "tag": "DROP TABLE", "objects": []}'
        for content in (body, "0" * 64 + "\n" + body, "", "\n", "ü" * 64 + "\n{}"):
            stranger.execute("SELECT pg_logical_emit_message(true, 'pgtide.ddl', %s)", [content])
        stranger.execute("SELECT pg_logical_emit_message(false, 'pgtide.ddl', %s)", [body])
    progress = captured.capture()
    assert progress.counters["forged_ddl"] == 5
    assert [e.op for e in captured.events()] == ["ddl"] + ["message"] * 6
    payloads = [e.payload for e in captured.events("message")]
    assert {payload["prefix"] for payload in payloads if payload} == {"pgtide.ddl"}


def test_a_replayed_ddl_message_is_forged(captured: Captured) -> None:
    """A signature holds for one transaction only."""
    captured.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = captured.config.source.slot
    ((data,),) = captured.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        f" 'publication_names', '{slot}', 'messages', 'true')"
        " WHERE position('pgtide.ddl'::bytea IN data) > 0",
        [slot],
    )
    content = data[data.index(b"pgtide.ddl\0") + 15 :].decode()
    captured.execute("SELECT pg_logical_emit_message(true, 'pgtide.ddl', %s)", [content])
    progress = captured.capture()
    assert progress.counters["forged_ddl"] == 1
    assert [e.op for e in captured.events()] == ["ddl", "message"]


def test_a_role_with_the_least_rights_captures_everything(
    make_captured: MakeCaptured, database: Database
) -> None:
    database.execute("CREATE TABLE existing (id int PRIMARY KEY, v text)")
    url = database.create_role("LOGIN REPLICATION")
    captured = make_captured(url=url, admin_url=database.url)
    captured.run(
        """
        INSERT INTO existing VALUES (1, 'a');
        CREATE SCHEMA private;
        CREATE TABLE private.t (id int PRIMARY KEY);
        INSERT INTO private.t VALUES (1);
        ALTER TABLE existing RENAME COLUMN v TO w;
        INSERT INTO existing VALUES (2, 'b');
        """
    )
    for gear in GEARS:
        captured.capture(gear)
        captured.execute("DELETE FROM existing")
    captured.capture()
    ops = [(e.op, e.table) for e in captured.events() if e.table]
    assert ops == [
        ("insert", "existing"),
        ("ddl", "t"),
        ("insert", "t"),
        ("ddl", "existing"),
        ("insert", "existing"),
        ("delete", "existing"),
        ("delete", "existing"),
    ]
    assert captured.events("insert")[-1].after == {"id": "2", "w": "b"}


def test_positions_start_where_init_was(captured: Captured) -> None:
    start = captured.log.position
    assert captured.confirmed() == start
    captured.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    progress = captured.capture()
    assert progress.position >= Lsn(max(row["lsn"] for row in captured.rows()))
    assert captured.confirmed() <= progress.position


def test_changes_that_came_from_elsewhere(make_captured: MakeCaptured) -> None:
    both, own = make_captured(origin="any"), make_captured(origin="none")
    both.execute("CREATE TABLE t (id int PRIMARY KEY)")
    name = both.database.name
    both.run(
        f"""
        SELECT pg_replication_origin_create('{name}');
        INSERT INTO t VALUES (1);
        SELECT pg_replication_origin_session_setup('{name}');
        INSERT INTO t VALUES (2);
        SELECT pg_replication_origin_session_reset();
        INSERT INTO t VALUES (3);
        """
    )
    try:
        for captured, expected in ((both, ["1", "2", "3"]), (own, ["1", "3"])):
            for gear in GEARS:
                captured.capture(gear)
            assert [after["id"] for _, _, after in captured.changes()] == expected
    finally:
        both.execute(f"SELECT pg_replication_origin_drop('{name}')")


def test_bytes_that_are_no_text_stop_the_capture(
    make_captured: MakeCaptured, server: Server
) -> None:
    database = Database.create(server, "SQL_ASCII")
    try:
        captured = make_captured(database)
        captured.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        captured.execute("INSERT INTO t VALUES (1, 'fine')")
        captured.capture()
        captured.execute(r"INSERT INTO t VALUES (2, E'\377secret')")
        for gear in GEARS:
            with pytest.raises(InvalidText, match="UTF-8") as caught:
                captured.capture(gear)
            assert "0xff" not in str(caught.value) + caught.value.detail
        assert len(captured.events("insert")) == 1
    finally:
        database.drop()
