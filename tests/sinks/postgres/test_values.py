"""Every type arrives as it was, and what rules hide arrives nowhere."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetError
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from tests.fixtures.capture import MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.waiting import wait_until
from tests.sinks.postgres.replicas import Replica
from tests.sinks.postgres.samples import write_samples
from tests.snapshot.taking import take

TYPES = """CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS numeric(8,2) CHECK (value > 0);
CREATE TYPE spans AS RANGE (subtype = float8);
CREATE TYPE nested AS (p pair, ps pair[], m mood, d positive, r spans[]);
CREATE DOMAIN moods AS mood[] CHECK (cardinality(value) < 5);
CREATE DOMAIN whole AS nested;
CREATE TABLE v (id int PRIMARY KEY, b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric,
    n2 numeric(30,10), m money, t text, vc varchar(20), c char(5), qc "char", nm name, ba bytea,
    d date, ti time(3), tz timetz, ts timestamp, tsz timestamptz, iv interval, u uuid, j json,
    jb jsonb, x bit(5), vx varbit, ip inet, ci cidr, ma macaddr, p point, po polygon,
    r int4range, mr int8multirange, tq tsquery, tv tsvector, l pg_lsn, ia int[], ta text[][],
    e mood, ea mood[], pr pair, pa pair[], dm positive, sp spans, oc regclass, o oid,
    ne nested, nes nested[], dms positive[], ms moods, wh whole, whs whole[], smr spans_multirange);
"""
ROWS = """INSERT INTO v (id) VALUES (0);
INSERT INTO v VALUES (1, true, -32768, 9223372036854775807, 'NaN', '-Infinity', 'NaN',
    12345678901234567890.1234567890, -12.34, E'tab\\t back\\\\ line\\n cr\\r nul \\\\N', '', 'ab',
    'x', 'name', '\\x00ff', '4713-01-01 BC', '24:00', '23:59:59.999999-15:59', 'infinity',
    '294276-12-31 23:59:59.999999+00', '-1 year 2 mons -3 days 04:05:06.7',
    '00000000-0000-0000-0000-000000000000', '{"a": 1, "a": 2.0}', '{"a": 1.00}', '10101', '1',
    '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03', '(1.5,-0)', '((0,0),(1,1),(2,0))', '[1,5)',
    '{[1,3),[7,)}', '''a'' & ''b''', '''a'':1 ''b'':2A', '16/B374D848', '{1,NULL,3}',
    '{{a,"b c"},{NULL,"NULL"}}', 'it''s "ok"', '{sad,"it''s \\"ok\\""}', '(1,"a,b")',
    '{"(1,x)","(,)"}', 12.5, '[1.5,2.5)', 'v', 42,
    ROW((NULL, E'"\\t\\\\,)'), ARRAY[(1, '')::pair, NULL], 'sad', NULL, '{"[1,2)",empty}'),
    ARRAY[NULL, ROW(NULL, NULL, NULL, 0.1, NULL)::nested], '{1.00,NULL}', '{NULL,sad}',
    ROW(NULL, NULL, 'sad', NULL, NULL), ARRAY[ROW((1, 'a'), '{}', NULL, 1, '{}')::whole],
    '{[1.5,2.5),[7,infinity)}');
INSERT INTO v (id, f8, n, t, ts, qc) VALUES (2, -0.0, 1e-20, 'ü€𝄞', '0044-03-15 BC', '\\377');
UPDATE v SET e = 'sad', tv = 'z' WHERE id = 1;
"""
VECTORS = """CREATE TABLE e (id int PRIMARY KEY, v vector(3), vs vector[], h halfvec(4),
    hs halfvec(2)[], s sparsevec(5), ss sparsevec[], large vector, n int);
CREATE TABLE k (v vector(2) PRIMARY KEY, s sparsevec(3));
CREATE TABLE bag (v vector, h halfvec, s sparsevec);
ALTER TABLE bag REPLICA IDENTITY FULL;
"""
VECTOR_ROWS = """INSERT INTO e VALUES (1, '[1,-0,3.4028235e38]',
    '{"[1]",NULL,"[1e-45,2]"}', '[65504,-0,6e-8,0.1]', '{"[1,2]"}', '{1:1.5,5:-2}/5',
    '{"{}/3",NULL}', (SELECT array_agg(sin(n)) FROM generate_series(1, 3000) n)::real[]::vector);
INSERT INTO e VALUES (2, NULL, '{}', NULL, NULL, '{}/5', '[0:0]={"{2:7}/2"}', NULL);
INSERT INTO e (id) VALUES (3);
INSERT INTO k VALUES ('[1,2]', NULL), ('[1,2.5]', '{3:1}/3'), ('[0,0]', '{}/3');
INSERT INTO bag VALUES ('[1,2]', '[3]', NULL), ('[1,2]', '[3]', NULL), (NULL, NULL, '{1:1}/9');
"""


def test_every_type(replica: Replica) -> None:
    replica.captured.run(TYPES)
    replica.captured.run(ROWS)
    write_samples(replica.captured.database, "samples")
    replica.captured.run("CREATE TABLE named (id int PRIMARY KEY, c regclass, cs regclass[]);\n")
    replica.follow()
    replica.check_equal("v", "samples")
    replica.captured.run(
        """UPDATE v SET id = id + 10;
DELETE FROM v WHERE id = 10;
UPDATE samples SET id = -id;
UPDATE samples SET (text, texts) = ('other', NULL) WHERE id < -1;
CREATE TABLE later (id int PRIMARY KEY);
INSERT INTO named VALUES (1, 'later', '{later}');
"""
    )
    replica.follow()
    replica.check_equal("v", "samples", "named")


@pytest.mark.slow
def test_vectors(
    spark: SparkSession, database: Database, target: Database, make_captured: MakeCaptured
) -> None:
    """The types of pgvector, some too large for their row, read and streamed."""
    available = "SELECT name FROM pg_available_extensions WHERE name = 'vector'"
    if not database.execute(available):
        pytest.skip("this server has no pgvector")
    for each in (database, target):
        each.execute("CREATE SCHEMA ext; CREATE EXTENSION vector SCHEMA ext")
        each.execute(f"SET search_path = public, ext; {VECTORS}")
    database.execute(f"SET search_path = public, ext; {VECTOR_ROWS}")
    captured = make_captured(snapshot="initial")
    take(captured, spark)
    replica = Replica(spark, captured, target)
    replica.follow()
    replica.check_equal("e", "k", "bag")
    captured.run(
        """SET search_path = public, ext;
INSERT INTO e SELECT id + 10, v, vs, h, hs, s, ss, large FROM e;
UPDATE e SET n = 5, v = '[0,3,4]' WHERE id = 1;
UPDATE e SET s = '{2:-0.5}/5', ss = NULL WHERE id = 2;
UPDATE k SET v = '[9,9]' WHERE v = '[1,2]';
DELETE FROM k WHERE v = '[0,0]';
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);
UPDATE bag SET h = '[1,1]' WHERE v IS NULL;
"""
    )
    replica.follow()
    replica.check_equal("e", "k", "bag")
    captured.run(
        """SET search_path = public, ext;
CREATE INDEX near ON e USING hnsw (v vector_l2_ops);
UPDATE e SET n = 6 WHERE id = 11;
DROP INDEX near;
ALTER TABLE e ALTER v TYPE halfvec(3) USING l2_normalize(v), ALTER h TYPE vector(4);
ALTER TABLE e ALTER s TYPE vector(5);
INSERT INTO e (id, v, h, s) VALUES (20, '[1,2,3]', '[1,2,3,4]', '[0,0,0,0,1]');
UPDATE e SET n = 7 WHERE id = 11;
CREATE TABLE made (id int PRIMARY KEY, v vector(1) DEFAULT '[7]', a halfvec[]);
INSERT INTO made (id) VALUES (1);
ALTER TABLE made ADD COLUMN w sparsevec(2) DEFAULT '{1:3}/2';
"""
    )
    replica.follow()
    replica.check_equal("e", "k", "bag", "made")


def test_masked_values_are_nowhere(replica: Replica) -> None:
    secret = "1234-5678-9012"
    replica.both(
        "CREATE TABLE cards (id int PRIMARY KEY, number text, owner text, left_out text);\n"
    )
    replica.captured.run("ALTER TABLE cards REPLICA IDENTITY FULL;\n")
    replica.captured.run(
        f"INSERT INTO cards VALUES (1, '{secret}', 'ann', 'x'), (2, NULL, 'b', 'x');\n"
    )
    rules = [
        {"table": "public.cards", "transform": {"column": "number", "mask": {}}},
        {"table": "public.cards", "exclude": ["left_out"]},
        {"table": "public.cards", "filter": {"column": "owner", "operator": "ne", "value": "zoe"}},
    ]
    pipeline = {"rules": rules}
    replica.follow(pipeline, ddl=[])
    replica.captured.run(f"INSERT INTO cards VALUES (3, '{secret}', 'cid', 'x');\n")
    replica.captured.run("UPDATE cards SET owner = 'zoe' WHERE id = 3;\n")
    replica.captured.run("UPDATE cards SET owner = 'anna', id = 9 WHERE id = 1;\n")
    replica.captured.run("DELETE FROM cards WHERE id = 2;\n")
    replica.follow(pipeline, ddl=[])
    assert replica.rows("cards", "*") == [(9, "1************2", "anna", None)]
    for (table,) in replica.target.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname IN ('public', 'pgtide')"
    ):
        assert secret not in str(replica.target.execute(f"SELECT t::text FROM {table} t")), table


def test_defaults_of_new_columns_are_masked(replica: Replica) -> None:
    """Rows that are there have what rules make of a default; else the command is refused."""
    replica.captured.run(
        """CREATE TABLE cards (id int PRIMARY KEY);
INSERT INTO cards VALUES (1);
ALTER TABLE cards ADD number text NOT NULL DEFAULT '1234-5678', ADD n int DEFAULT 3,
ADD gone text DEFAULT '1234-5678', ADD plain text DEFAULT 'x', ADD sum numeric DEFAULT 0.01;
ALTER TABLE cards ADD nothing text DEFAULT NULL;
INSERT INTO cards VALUES (2);
"""
    )
    transforms: list[dict[str, Any]] = [
        {"column": "number", "mask": {}},
        {"column": "n", "sql": "n * 2"},
        {"column": "gone", "null": True},
        {"column": "sum", "sql": "sum + 12345678901234567"},  # as a decimal, be it a default
        {"column": "nothing", "mask": {}},
        {"column": "made", "mask": {}},
        {"column": "tail", "sql": "concat(number, tail)"},
    ]
    rules = [{"table": "public.cards", "optional": True, "transform": t} for t in transforms]
    replica.follow({"rules": rules, "unbounded_numeric": "decimal(20,2)"})
    total = Decimal("12345678901234567.01")
    assert replica.rows("cards", "*") == [
        (1, "1*******8", 6, None, "x", total, None),
        (2, "1*******8", 6, None, "x", total, None),
    ]
    ((default,),) = replica.target.execute(
        "SELECT column_default FROM information_schema.columns WHERE column_name = 'number'"
    )
    assert default is None, "it would be there for all to see"
    replica.captured.run("ALTER TABLE cards ADD tail text DEFAULT 'z';\n")
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow({"rules": rules})
    assert "pgtide refresh public.cards" in caught.value.detail
    assert "pgtide skip" in caught.value.hint
    replica.captured.run("ALTER TABLE cards ADD made text DEFAULT 'a' || random();\n")
    with pytest.raises(TargetError, match="cannot be replayed") as caught:
        replica.follow({"rules": rules[:-1]})
    assert "Rules change the new column made" in caught.value.detail


def test_rules_apply_to_new_columns_without_a_default(replica: Replica) -> None:
    """What they make of NULL; where that hinges on each row, rows are read again."""
    store = RefreshStore(Storage(replica.captured.config.log.path))
    rules: list[dict[str, Any]] = [
        {"table": "public.t", "transform": {"column": "note", "sql": "coalesce(note, 'none')"}},
        {"table": "public.t", "transform": {"column": "n", "sql": "coalesce(n, 7)"}},
        {"table": "public.t", "transform": {"column": "hidden", "mask": {}}},
        {"table": "public.t", "transform": {"column": "nick", "sql": "coalesce(nick, name)"}},
        {"table": "public.sieve", "filter": {"column": "tenant", "operator": "eq", "value": 1}},
        {"table": "public.*bag", "transform": {"column": "nick", "sql": "coalesce(nick, name)"}},
    ]
    pipeline = {"rules": [{"optional": True, **rule} for rule in rules]}
    replica.captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text);
CREATE TABLE sieve (id int PRIMARY KEY);
CREATE TABLE empty_bag (name text);
CREATE TABLE bag (name text);
INSERT INTO t VALUES (1, 'a');
INSERT INTO sieve VALUES (1), (2);
INSERT INTO bag VALUES ('a');
ALTER TABLE t ADD note text, ADD n int DEFAULT NULL, ADD hidden text, ADD plain text;
INSERT INTO t VALUES (2, 'b', 'x', 1);
"""
    )
    replica.follow(pipeline)
    assert store.requests() == []
    columns = "id, name, note, n, hidden, plain"
    assert replica.rows("t", columns) == [
        (1, "a", "none", 7, None, None),
        (2, "b", "x", 1, None, None),
    ]
    defaults = "SELECT count(column_default) FROM information_schema.columns"
    ((found,),) = replica.target.execute(f"{defaults} WHERE table_name = 't'")
    assert found == 0, "as at the source"
    replica.captured.run(
        """ALTER TABLE t ADD nick text, ADD secret text DEFAULT 'x';
ALTER TABLE sieve ADD tenant int;
INSERT INTO sieve VALUES (3, 1);
ALTER TABLE empty_bag ADD nick text;
"""
    )
    replica.follow(pipeline)
    assert sorted(request.table for request in store.requests()) == ["public.sieve", "public.t"]
    assert replica.rows("t", "id, nick, secret") == [(1, None, "x"), (2, None, "x")]

    def refreshed() -> bool:
        replica.captured.capture()
        return not any(store.is_open(request.id) for request in store.requests())

    wait_until(refreshed, "the tables to be read again")
    replica.follow(pipeline)
    assert replica.rows("t", "id, nick, secret") == [(1, "a", "x"), (2, "b", "x")]
    assert replica.rows("sieve", "id, tenant") == [(3, 1)]
    replica.captured.run("ALTER TABLE bag ADD nick text;\n")
    with pytest.raises(TargetError, match="gives rows values that only the source has"):
        replica.follow(pipeline)
