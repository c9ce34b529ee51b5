"""Every type, key and kind of table is compared exactly."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.verify.report import Difference
from tests.fixtures.capture import Captured
from tests.verify.lake import lake_config, place, table_report, verify

TYPES = """CREATE TYPE mood AS ENUM ('fine', 'so so');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN euros AS numeric(10,3);
CREATE DOMAIN code AS char(4);
CREATE TABLE types (id int PRIMARY KEY, i2 int2, o oid, b bool, c4 char(4), vc varchar(9), d date,
    ts timestamp, tz timestamptz, tm time, iv interval, num numeric, dec numeric(30,10),
    small numeric(8,8), money_ money, e euros, co code, f4 float4, f8 float8, bin bytea,
    j json, jb jsonb, ip inet, net cidr, ch "char", m mood, p pair, r int4range,
    ints int[], texts text[], floats float8[], stamps timestamptz[], bools bool[],
    decs numeric(9,2)[], bins bytea[], pt point, bits bit(3));
INSERT INTO types (id) VALUES (0);
INSERT INTO types VALUES (1, -3, 4000000000, true, 'ab', '', '0001-01-01',
    '9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00', '24:00',
    '1 mon -3 days 00:00:00.1', 1.500, 0.0000000001, 0.00012, '-12.34', 12.340, 'x', 'NaN', '-0',
    '\\x00ff', '{"a":  1}', '{"a": 1.50}', '10.0.0.1/32', '10.0.0.0/8', 'q', 'so so', '(1,)',
    '[1,5)', '{1,NULL,3}', '{"",NULL,"NULL","a,b","é\\"\\\\"}', '{NaN,-0,1e300,NULL}',
    '{"2024-01-01 00:00:00+05",NULL}', '{t,f,NULL}', '{1.50,NULL}', '{"\\\\x00",NULL}',
    '(1.5,2)', '101');
INSERT INTO types (id, f4, f8, ints, texts, dec, bin) VALUES
    (2, 'Infinity', 'Infinity'::float8 - 'Infinity'::float8, '{}', '{}', 0, ''),
    (3, 1.1, 0.1, '{0}', '{" "}', 99999999999999999999.0123456789, '\\x5c');
"""


def test_every_type(spark: SparkSession, captured: Captured) -> None:
    captured.run(TYPES)
    config = lake_config(captured)
    clean = table_report(verify(spark, config), "types")
    assert (clean.equal, clean.rows, clean.left_out) == (True, 4, {}), clean
    table = place(captured, "types")
    for change in (
        "floats = array(double('NaN'), 0D, 1e300D, NULL)",
        "texts = array('', NULL, NULL, 'a,b', 'é\"\\\\')",
        "f8 = 0D, bins = array(X'00', X'')",
        "c4 = 'ab', ip = '10.0.0.1/32', jb = '{\"a\": 1.5}'",
    ):
        spark.sql(f"UPDATE {table} SET {change} WHERE id = 1")
        spark.sql(f"UPDATE {table} SET f8 = 0.1D + 0.0000000000000000139D WHERE id = 3")
    found = table_report(verify(spark, config), "types")
    changed = ("c4", "f8", "jb", "ip", "texts", "floats", "bins")
    assert sorted(found.differences[0].columns) == sorted(changed)
    assert found.differences[1] == Difference("different", ("3",), ("f8",))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"sample": 1.0, "seed": "s"}, marks=pytest.mark.slow)],
    ids=["all", "sample"],
)
def test_keys_partitions_and_tables_without_a_key(
    spark: SparkSession, captured: Captured, options: dict[str, Any]
) -> None:
    captured.run(
        """CREATE TABLE two (a text, b date, v text, PRIMARY KEY (a, b));
INSERT INTO two SELECT 'k' || n % 50, '2024-01-01'::date + n, 'v' || n
    FROM generate_series(1, 300) n;
CREATE TABLE parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE parts_2 (v text, at date NOT NULL, id int NOT NULL);
ALTER TABLE parts_2 ADD PRIMARY KEY (id, at);
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
INSERT INTO parts SELECT n, '2024-01-01'::date + n, 'p' || n FROM generate_series(1, 50) n;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (3, '');
CREATE TABLE nothing (id int PRIMARY KEY);
CREATE TABLE "Odd % name" ("Key %" int PRIMARY KEY, "a.b" text);
INSERT INTO "Odd % name" VALUES (1, 'x');
CREATE TABLE hashes (row_hash int PRIMARY KEY, v0 text);
INSERT INTO hashes SELECT n, n FROM generate_series(1, 9) n;
"""
    )
    config = lake_config(captured)
    report = verify(spark, config)
    assert [table.equal for table in report.tables] == [True] * 6, report
    assert sum(table.rows for table in report.tables) == 300 + 50 + 6 + 1 + 9
    two, parts, bag = (place(captured, name) for name in ("two", "parts", "bag"))
    spark.sql(f"DELETE FROM {two} WHERE a = 'k7' AND b = DATE'2024-01-08'")
    spark.sql(f"UPDATE {two} SET v = 'w' WHERE a = 'k9' AND b = DATE'2024-01-10'")
    spark.sql(f"UPDATE {parts} SET v = 'P' WHERE id IN (5, 45)")
    spark.sql(f"INSERT INTO {bag} SELECT * FROM {bag} WHERE a = 3")
    spark.sql(f"DELETE FROM {bag} WHERE a = 2")
    captured.run("INSERT INTO two VALUES ('late', '2025-01-01', 'z');\n")
    report = verify(spark, config, **options)
    assert table_report(report, "two").differences == [
        Difference("different", ("k9", "2024-01-10"), ("v",)),
        Difference("missing", ("k7", "2024-01-08")),
    ]
    assert [one.key for one in table_report(report, "parts").differences] == [
        ("45", "2024-02-15"),
        ("5", "2024-01-06"),
    ]
    found = table_report(report, "bag")
    assert (found.missing, found.extra, found.differences) == (2, 1, [])


@pytest.mark.slow
def test_rules_soft_deletes_and_what_is_refused(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, mail text, secret text, day date,
    days date[]);
INSERT INTO t SELECT n, 'n' || n, 'm' || n, 's', 'infinity', '{2024-01-01}'
    FROM generate_series(1, 20) n;
CREATE TABLE filtered (id int PRIMARY KEY);
INSERT INTO filtered VALUES (1);
DELETE FROM t WHERE id > 15;
"""
    )
    rules = [
        {"table": "public.t", "exclude": ["secret"]},
        {"table": "public.t", "rename": {"name": "title"}},
        {"table": "public.t", "transform": {"column": "mail", "mask": {}}},
    ]
    routes = [{"table": "public.filtered", "operations": ["insert"]}]
    config = lake_config(
        captured, {"soft_delete": True}, rules=rules, routes=routes, on_unrepresentable="null"
    )
    report = verify(spark, config)
    table = table_report(report, "t")
    assert (table.equal, table.rows) == (True, 15), table
    assert set(table.left_out) == {"mail", "days"}
    assert "filter" in table_report(report, "filtered").refused
    spark.sql(f"UPDATE {place(captured, 't')} SET title = 'x', _pgtide_deleted = true WHERE id = 3")
    spark.sql(f"UPDATE {place(captured, 't')} SET title = 'x' WHERE id = 4")
    found = table_report(verify(spark, config), "t").differences
    assert found == [Difference("different", ("4",), ("name",)), Difference("missing", ("3",))]
    history = lake_config(captured, {"mode": "history", "path": str(captured.directory / "h")})
    assert "history" in verify(spark, history).refused
