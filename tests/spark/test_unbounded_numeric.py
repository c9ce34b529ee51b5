"""``unbounded_numeric`` for Spark users: in ``changes()``, ``latest()`` and the format."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pgtide
from pgtide.errors import ConfigError
from tests.fixtures.capture import Captured

SCRIPT = """CREATE TABLE t (k numeric PRIMARY KEY, a numeric, parts numeric[], p numeric(5,2));
INSERT INTO t VALUES (1.0, 1.500000000000, '{0.10,NULL}', 2.5);
INSERT INTO t VALUES (2, 'NaN', '{NaN}', 2.5);
INSERT INTO t VALUES (3, '0.00000000001');
UPDATE t SET k = 1.00, a = 7 WHERE k = 1;
"""
KINDS = {"k": "decimal(38,10)", "a": "decimal(38,10)", "parts": "array<decimal(38,10)>"}


def test_decimals(spark: SparkSession, captured: Captured) -> None:
    captured.run(SCRIPT)
    captured.capture()
    log = str(captured.config.log.path)
    typed: dict[str, Any] = {"unbounded_numeric": "decimal(38,10)"}
    found = pgtide.changes(spark, log, "t", on_unrepresentable="null", **typed)
    after = found.orderBy("lsn", "seq").select("after.*")
    assert dict(after.dtypes) == {**KINDS, "p": "decimal(5,2)"}
    rows = [tuple(row)[:3] for row in after.collect()]
    assert rows == [
        (Decimal(1), Decimal("1.5"), [Decimal("0.1"), None]),
        (Decimal(2), None, None),
        (Decimal(3), None, None),
        (Decimal(1), Decimal(7), [Decimal("0.1"), None]),
    ]
    state = pgtide.latest(spark, log, "t", on_unrepresentable="null", **typed)
    assert sorted(row["k"] for row in state.collect()) == [Decimal(1), Decimal(2), Decimal(3)]
    options = {"log": log, "table": "t", "on_unrepresentable": "null", **typed}
    by_format = spark.read.format("pgtide").options(**options).load()
    assert by_format.schema["after"].dataType == found.schema["after"].dataType
    same = by_format.orderBy("lsn", "seq").select("after.*").collect()
    assert same == after.collect()
    with pytest.raises(PySparkException, match=r"in public\.t\.a at [0-9A-F]+/[0-9A-F]+:0"):
        pgtide.changes(spark, log, "t", **typed).collect()
    with pytest.raises(ConfigError, match="unbounded_numeric cannot be 'double'"):
        pgtide.changes(spark, log, "t", unbounded_numeric="double")
    options["unbounded_numeric"] = "double"
    with pytest.raises(PySparkException, match="unbounded_numeric cannot be 'double'"):
        spark.read.format("pgtide").options(**options).load()
