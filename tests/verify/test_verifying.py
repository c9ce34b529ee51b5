"""What is different is found, down to the key; what is equal is not reported."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.verify.report import Difference
from tests.fixtures.capture import Captured
from tests.verify.lake import lake_config, place, table_report, verify

KINDS = """CREATE TABLE t (id bigint PRIMARY KEY, n int, price numeric(12,2), exact numeric,
    name text, at timestamptz, local timestamp, ok bool, uid uuid, f float8, g float4);
"""
PORTION = 250_000  # rows of a transaction
ROWS = """INSERT INTO t SELECT n, n %% 10, n / 7.0, (n || '.500')::numeric, 'name ' || n,
    '2024-03-01 12:00:00.25+00'::timestamptz + n * interval '1 minute',
    '2024-03-01 12:00:00'::timestamp + n * interval '1 second', n %% 3 = 0,
    md5(n::text)::uuid, n / 3.0, n / 9.0 FROM generate_series(%s::bigint, %s::bigint) n
"""


PLANTED = (
    "DELETE FROM {} WHERE id = 17",
    "UPDATE {} SET name = 'name 20!' WHERE id = 20",
    "UPDATE {} SET name = '' WHERE id = 50000000",
    "UPDATE {} SET exact = '42.5' WHERE id = 42",
    "UPDATE {} SET at = at + INTERVAL '1' HOUR WHERE id = 77",
    "UPDATE {} SET local = local - INTERVAL '2' HOUR, ok = NULL WHERE id = 78",
    "INSERT INTO {} SELECT 99999999, n, price, exact, name, at, local, ok, uid, f, g,"
    " _pgtide_lsn, _pgtide_seq FROM {} WHERE id = 1",
    "INSERT INTO {} SELECT NULL, n, price, exact, name, at, local, ok, uid, f, g,"
    " _pgtide_lsn, _pgtide_seq FROM {} WHERE id = 1",
)
FOUND = [
    Difference("different", ("20",), ("name",)),
    Difference("different", ("42",), ("exact",)),
    Difference("different", ("50000000",), ("name",)),
    Difference("different", ("77",), ("at",)),
    Difference("different", ("78",), ("local", "ok")),
    Difference("extra", (None,)),
    Difference("extra", ("99999999",)),
    Difference("missing", ("17",)),
]


def plant_and_find(spark: SparkSession, captured: Captured, rows: int) -> None:
    captured.run(KINDS)
    for first in range(1, rows + 1, PORTION):
        captured.execute(ROWS, [first, min(rows, first + PORTION - 1)])
    captured.run("INSERT INTO t (id, name) VALUES (50000000, NULL), (50000001, '');\n")
    config = lake_config(captured)
    clean = table_report(verify(spark, config), "t")
    assert (clean.equal, clean.rows, clean.target_rows) == (True, rows + 2, rows + 2)
    assert not clean.left_out
    for change in PLANTED:
        spark.sql(change.replace("{}", place(captured, "t")))
    found = table_report(verify(spark, config), "t")
    assert (found.missing, found.extra, found.different) == (1, 2, 5)
    assert found.key == ("id",)
    assert found.differences == FOUND


def test_what_was_planted_is_found(spark: SparkSession, captured: Captured) -> None:
    plant_and_find(spark, captured, 3000)


@pytest.mark.slow
def test_numeric_as_a_decimal(spark: SparkSession, captured: Captured) -> None:
    """Equal values are equal, however many zeros they end in; and no other ones."""
    captured.run("CREATE TABLE t (k numeric PRIMARY KEY, a numeric, parts numeric[]);")
    captured.run(
        "INSERT INTO t SELECT n / 2.0, (n || '.5' || repeat('0', n % 20))::numeric, "
        "array[n, NULL, n / 4.0] FROM generate_series(1, 50) n;"
    )
    decimal: dict[str, Any] = {"unbounded_numeric": "decimal(30,6)"}
    config = lake_config(captured, **decimal)
    clean = table_report(verify(spark, config), "t")
    assert (clean.equal, clean.rows, clean.left_out) == (True, 50, {})
    spark.sql(f"UPDATE {place(captured, 't')} SET a = a + 0.000001 WHERE k = 2.5")
    spark.sql(f"UPDATE {place(captured, 't')} SET parts = array(1.25) WHERE k = 3")
    found = table_report(verify(spark, config), "t")
    assert [one.columns for one in found.differences] == [("a",), ("parts",)]
    # What the decimal cannot hold is NULL in the mirror, and a key of that kind is not there.
    spark.sql(f"UPDATE {place(captured, 't')} SET a = a - 0.000001 WHERE k = 2.5")
    captured.run("INSERT INTO t VALUES (100, '0.0000001'), (101, 'NaN'), (102, '1e24');")
    captured.run("INSERT INTO t VALUES (0.0000001, 1), ('Infinity', 1), (103, '-Infinity');")
    lenient = lake_config(captured, **decimal, on_unrepresentable="null")
    found = table_report(verify(spark, lenient), "t")
    assert (found.equal, found.target_rows) == (True, 54)
    assert list(found.left_out) == ["parts"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_was_planted_is_found_in_ten_million_rows(
    spark: SparkSession, captured: Captured
) -> None:
    plant_and_find(spark, captured, 10_000_000)
