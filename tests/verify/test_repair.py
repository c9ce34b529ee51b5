"""What a repair asks for, where the target has keys that the source cannot read."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from pgtide.verify.repair import Repair
from tests.fixtures.capture import Captured
from tests.verify.lake import lake_config, place, verify

KEY = "00000000-0000-0000-0000-00000000000a"


def test_keys_as_the_source_reads_them(spark: SparkSession, captured: Captured) -> None:
    """Spark writes numbers and arrays otherwise; and what was damaged may be a key."""
    captured.run(
        f"""CREATE TABLE numbers (k float8 PRIMARY KEY, v text);
INSERT INTO numbers VALUES (0.1, 'v'), (1, 'v');
CREATE TABLE lists (k text[] PRIMARY KEY, v text);
INSERT INTO lists VALUES ('{{a,NULL}}', 'v');
CREATE TABLE damaged (k uuid PRIMARY KEY, v text);
INSERT INTO damaged VALUES ('{KEY}', 'v');
"""
    )
    config = lake_config(captured)
    assert all(table.equal for table in verify(spark, config).tables)
    for table, ghost in (("numbers", "1e300D"), ("lists", "array('x', NULL)")):
        rows = f"SELECT {ghost}, v, _pgtide_lsn, _pgtide_seq FROM {place(captured, table)} LIMIT 1"
        spark.sql(f"INSERT INTO {place(captured, table)} {rows}")
    spark.sql(f"UPDATE {place(captured, 'damaged')} SET k = 'no key'")
    report = verify(spark, config)
    assert [table.differing for table in report.tables] == [2, 1, 1]
    Repair(spark, config, "lake").run(report)
    assert all(table.equal for table in verify(spark, config).tables)
    asked = RefreshStore(Storage(config.log.path)).requests()
    assert {request.table: request.keys for request in asked} == {
        "public.numbers": (("1e+300",),),
        "public.lists": None,
        "public.damaged": None,
    }
