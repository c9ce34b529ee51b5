"""A lake belongs to one log: another's positions and relations mean something else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.errors import TargetError
from pgtide.sinks.delta.target import SOURCE_PROPERTY, Target
from tests.fixtures.capture import Captured
from tests.sinks.lakes import deliver, rows, table


@pytest.mark.parametrize("mode", ["mirror", pytest.param("history", marks=pytest.mark.slow)])
def test_the_tables_of_another_log(spark: SparkSession, captured: Captured, mode: str) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.run("CREATE TABLE u (id int PRIMARY KEY);\nINSERT INTO u VALUES (1);")
    deliver(spark, captured, mode)
    t, u = (Target(spark, str(captured.directory / mode / "public" / n), {}) for n in ("t", "u"))
    known = t.properties()[SOURCE_PROPERTY]
    assert captured.config.source.slot in known

    # A lake from before tables had this property.
    spark.sql(f"ALTER TABLE {u.sql} UNSET TBLPROPERTIES ('{SOURCE_PROPERTY}')")
    captured.run("INSERT INTO u VALUES (2);")
    deliver(spark, captured, mode)
    assert u.properties()[SOURCE_PROPERTY] == known

    t.set_properties({SOURCE_PROPERTY: known.replace(captured.config.source.slot, "other")})
    before: list[Any] = rows(table(spark, captured, mode, "t"), "id")
    for script in ("INSERT INTO t VALUES (2);", "DROP TABLE t;"):
        captured.run(script)
        with pytest.raises(TargetError, match="of another log"):
            deliver(spark, captured, mode, dropped_tables="drop")
    assert rows(table(spark, captured, mode, "t"), "id") == before
