"""The session that pgtide makes, and what it says about one that somebody else made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pgtide
from pgtide.errors import ConfigError, EnvironmentMissing
from pgtide.spark import java
from pgtide.spark.jars import delta_jars
from pgtide.spark.session import local_cores, prepare
from pgtide.spark.session_checks import DELTA, missing_delta
from tests.fixtures.capture import Captured
from tests.fixtures.spark import SMALL, TIME_ZONE

SECRET = "swordfish"

# Programs that share a session of their own, one after the other.
START = f"""
import sys
from pathlib import Path
from pyspark import InheritableThread
import pgtide
from tests.fixtures.waiting import wait_until
names = ["fs.s3.bucket.a.secret.key", "fs.s3.access.key", "fs.azure.account.key.a.net", "x.TOKEN"]
given = dict.fromkeys([f"spark.hadoop.{{name}}" for name in names], "{SECRET}")
memory = {{"spark.master": "local[1]", "spark.driver.memory": "900m"}}
spark = pgtide.session(**memory, **given)
java = str(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
"""

END = "-- the end of a program --"
NEXT = f"""
for stream in (sys.stdout, sys.stderr):
    print("{END}", file=stream, flush=True)
"""

FAILING = f"""
print(spark.conf.get("spark.driver.memory"), spark.conf.get("spark.sql.shuffle.partitions"))
frame = spark.createDataFrame([("{SECRET}",)], "text string")
try:
    frame.select(frame.text.cast("int")).collect()
except Exception as error:
    print("{SECRET}" in str(error))
try:
    frame.select(frame.text.cast("int")).write.format("noop").mode("append").save()
except Exception as error:
    print(type(error).__name__)
"""

GIVEN = f"""
shown = Path(f"/proc/{{java}}/cmdline").read_text()
print("spark.driver.memory=900m" in shown, "{SECRET}" in shown)
for session in (spark, spark.newSession()):
    hadoop = session._jsparkSession.sessionState().newHadoopConf()
    print({{hadoop.get(name) for name in names}})
"""

IDLE = """
def parents():
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_text()
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has ended
        if "lookup_data_sources" in command:
            found[place.name] = parent
    return found

daemons = [pid for pid, parent in parents().items() if parent == java]
print(len(daemons), "daemon")
wait_until(lambda: not any(parent in daemons for parent in parents().values()), "it to go")
print("none is left")
reused = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().conf()
print(reused.get("spark.python.worker.reuse", "true"), spark.range(3).rdd.map(lambda _: 1).sum())
"""

OWN = """
import json
import sys
from pyspark.sql import SparkSession
import pgtide
builder = SparkSession.builder.master("local[1]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
pgtide.register(spark)
log, checkpoint = sys.argv[2:]
streamed = []

def rows(frame):
    return sorted(frame.toJSON().collect())

query = (
    pgtide.changes(spark, log, "t", stream=True)
    .writeStream.foreachBatch(lambda batch, _: streamed.extend(rows(batch)))
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.dumps({
    "changes": rows(pgtide.changes(spark, log, "t")),
    "format": rows(spark.read.format("pgtide").option("log", log).option("table", "t").load()),
    "stream": sorted(streamed),
    "latest": rows(pgtide.latest(spark, log, "t")),
}))
"""

CANCELLED = """
begun = Path(sys.argv[1])

def without_end(_):
    begun.touch()
    n = 0
    while True:
        yield (n := n + 1,)

def write():
    spark.sparkContext.setJobGroup("cancelled", "cancelled", interruptOnCancel=True)
    try:
        spark.createDataFrame(rows, "n long").write.format("noop").mode("append").save()
    except Exception as error:
        print("cancelled" in str(error))

rows = spark.sparkContext.parallelize([1], 1).flatMap(without_end)
thread = InheritableThread(target=write)
thread.start()
wait_until(begun.exists, "the worker", 120)
spark.sparkContext.cancelJobGroup("cancelled")
thread.join()
spark.stop()
"""

Printed = dict[str, tuple[str, str]]  # by program: stdout and stderr
PROGRAMS = {"idle": IDLE, "failing": FAILING, "given": GIVEN, "cancelled": CANCELLED}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """What each of the programs has printed, on stdout and on stderr."""
    text = START + NEXT.join(PROGRAMS.values())
    program = [sys.executable, "-c", text, str(tmp_path_factory.mktemp("cancelled") / "begun")]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    streams = (stream.split(f"{END}\n") for stream in (done.stdout, done.stderr))
    return dict(zip(PROGRAMS, zip(*streams, strict=True), strict=True))


def test_delta_works(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    assert [row.id for row in spark.read.format("delta").load(path).sort("id").collect()] == [0, 2]


def test_timestamps_are_written_as_microseconds(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1).coalesce(1).select(F.current_timestamp().alias("at"))
    frame.write.parquet(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(file).schema.column(0).physical_type == "INT64"


def test_a_running_session_is_given_again(spark: SparkSession) -> None:
    again = pgtide.session(**{"spark.databricks.delta.snapshotPartitions": 1})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.session.timeZone") == TIME_ZONE


def test_a_running_session_keeps_its_settings(spark: SparkSession) -> None:
    """Also when another thread asks, in which no session is the active one."""
    name = "spark.sql.shuffle.partitions"
    mine = str(spark.conf.get(name))
    spark.conf.set(name, "77")
    try:
        with ThreadPoolExecutor(1) as thread:
            given = thread.submit(pgtide.session).result()
        assert (given.sparkContext, given.conf.get(name)) == (spark.sparkContext, "77")
    finally:
        spark.conf.set(name, mine)


@pytest.mark.slow
def test_a_session_that_somebody_made(
    spark: SparkSession, captured: Captured, tmp_path: Path
) -> None:
    """With no settings of pgtide's but for Delta, and others that change how Spark reads."""
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, "N" numeric(10,2), at timestamptz, big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT n, n, '2024-01-01 00:00+00', repeat('x', 3000) FROM generate_series(1, 3) n;
UPDATE t SET "N" = 5.5, id = 20 WHERE id = 2;
ALTER TABLE t ADD COLUMN tags text[] DEFAULT '{"a b",NULL}';
DELETE FROM t WHERE id = 3;
"""
    )
    captured.capture()
    settings = {
        **DELTA,
        **SMALL,
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.driver.memory": "900m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": TIME_ZONE,
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parser.escapedStringLiterals": "true",
    }
    log = captured.config.log.path
    done = subprocess.run(
        [sys.executable, "-c", OWN, json.dumps(settings), str(log), str(tmp_path / "checkpoint")],
        env=os.environ | {"JAVA_HOME": str(java.find().home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    changes = sorted(pgtide.changes(spark, log, "t").toJSON().collect())
    latest = sorted(pgtide.latest(spark, log, "t").toJSON().collect())
    assert (len(changes), len(latest)) == (5, 2)
    ways = dict.fromkeys(("changes", "format", "stream"), changes)
    assert json.loads(done.stdout) == {**ways, "latest": latest}


def test_ignoring_missing_files_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    with pytest.raises(ConfigError, match=r"spark\.sql\.files\.ignoreMissingFiles is refused"):
        prepare(other)


def test_another_spark_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "version", "3.5.1")
    with pytest.raises(EnvironmentMissing, match=r"this is Spark 3\.5\.1, pgtide needs 4\.1"):
        prepare(spark)


def test_a_session_without_delta_is_refused(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.catalog.spark_catalog", "somebody.Else")
    with pytest.raises(ConfigError, match="has no Delta"):
        prepare(other)


def test_what_can_still_be_set_is_set(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    prepare(other)
    assert other.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def test_a_session_without_delta_is_told_what_it_lacks() -> None:
    extension, catalog = DELTA.values()
    assert missing_delta(f"other.Extension,{extension}", catalog) == []
    assert missing_delta("other.Extension", catalog) == [f"spark.sql.extensions={extension}"]
    assert len(missing_delta("", "")) == 2


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2, 4]", 2), ("spark://host:7077", 0), ("yarn", 0)],
)
def test_cores_of_a_master(master: str, cores: int) -> None:
    assert local_cores(master) == cores


def test_no_worker_is_kept_that_would_be_left_alone(printed: Printed) -> None:
    """The one that looks for formats at the start: a minute later it would print a traceback."""
    out, _ = printed["idle"]
    assert out.splitlines() == ["1 daemon", "none is left", "true 3"]


def test_row_values_stay_out_of_the_output(printed: Printed) -> None:
    out, said = printed["failing"]
    # The error itself quotes the value: it is the caller's to handle.
    assert out.splitlines() == ["900m 1", "True", "NumberFormatException"]
    assert "Stage" not in said
    assert SECRET not in "".join(said for _, said in printed.values())


def test_secrets_stay_out_of_process_lists(printed: Printed) -> None:
    out, _ = printed["given"]
    assert out.splitlines() == ["True False", *[f"{{'{SECRET}'}}"] * 2]


def test_a_cancelled_task_leaves_no_traceback_of_its_worker(printed: Printed) -> None:
    out, said = printed["cancelled"]
    assert out == "True\n", said
    assert "Traceback" not in said
