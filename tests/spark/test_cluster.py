"""The session, and reading a log, on a real standalone cluster: a master and two workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pgtide
from tests.fixtures.capture import Captured
from tests.fixtures.spark import TIME_ZONE, WORKERS, Cluster

# Five JVMs start on the cores of one machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import json
import sys
import pgtide
spark = pgtide.session(**json.loads(sys.argv[1]))
spark.range(0, 1000, 1, 4).write.format("delta").save(sys.argv[2])
frame = spark.read.format("delta").load(sys.argv[2])
print(frame.count(), spark.sparkContext.master)
"""

READING = """
import json
import sys
import pgtide
spark = pgtide.session(**json.loads(sys.argv[1]))
log, checkpoints, time_zone = sys.argv[2:]
spark.conf.set("spark.sql.session.timeZone", time_zone)
options = {"log": log, "table": "t"}

def rows(frame):
    return sorted(frame.toJSON().collect())

def streamed(name, frame):
    got = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: got.extend(batch.toJSON().collect()))
        .option("checkpointLocation", f"{checkpoints}/{name}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(got)

print(json.dumps({
    "latest": rows(pgtide.latest(spark, log, "t")),
    "changes": rows(pgtide.changes(spark, log, "t")),
    "format": rows(spark.read.format("pgtide").options(**options).load()),
    "changes streamed": streamed("changes", pgtide.changes(spark, log, "t", stream=True)),
    "format streamed": streamed(
        "format", spark.readStream.format("pgtide").options(**options).load()
    ),
}))
"""

SCRIPT = """CREATE TABLE t (id int PRIMARY KEY, price numeric(10,2), at timestamptz, tags text[]);
INSERT INTO t SELECT n, n, '2024-01-01 00:00:00+00', '{a,NULL}' FROM generate_series(1, 50) n;
UPDATE t SET price = 5.5 WHERE id <= 10;
ALTER TABLE t ADD COLUMN note text DEFAULT 'old';
DELETE FROM t WHERE id = 3;
"""


def test_delta_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    out = cluster.run(PROGRAM, str(tmp_path / "table"))
    assert out.split() == ["1000", cluster.url]
    assert len(list(cluster.work.glob("app-*/*"))) == WORKERS


def test_reading_a_log_on_a_cluster(
    cluster: Cluster, captured: Captured, spark: SparkSession, tmp_path: Path
) -> None:
    captured.run(SCRIPT)
    captured.capture()
    log = str(captured.config.log.path)
    found = json.loads(cluster.run(READING, log, str(tmp_path), TIME_ZONE))
    changes = sorted(pgtide.changes(spark, log, "t").toJSON().collect())
    latest = sorted(pgtide.latest(spark, log, "t").toJSON().collect())
    assert (len(changes), len(latest)) == (61, 49)
    ways = ("changes", "format", "changes streamed", "format streamed")
    assert found == {"latest": latest, **dict.fromkeys(ways, changes)}
