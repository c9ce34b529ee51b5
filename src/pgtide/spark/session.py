"""The Spark session: ``pgtide.session()`` makes one, ``prepare`` checks anyone's.

Settings that hold only from the start of the JVM (Delta, memory, logging) are
given here; what the caller names wins over all of it. Under ``spark-submit`` the
JVM is already there: its settings stand, and ``prepare`` says what they lack.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pgtide.spark import java
from pgtide.spark.jars import S3, delta_jars, s3_jars
from pgtide.spark.paths import S3A
from pgtide.spark.session_checks import DELTA, check_session
from pgtide.spark.source_format import register

log = logging.getLogger(__name__)

DEFAULTS = {
    "spark.app.name": "pgtide",
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Python workers over unix sockets: 40 ms less for every batch that has some.
    "spark.python.unix.domain.socket.enabled": "true",
    # Where in Python a column was made, looked up for each of the thousands we make.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A pipeline of a few tables has more stages than the 100 whose code is kept by default:
    # each batch would compile them anew.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Plans and figures of the last queries, for the web interface: of a thousand they fill
    # hundreds of MB of the heap.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "10000",
    **DELTA,
}

LOCAL = {
    # The JVM's heap; Spark's own 1g is little for driver and executor in one.
    "spark.driver.memory": "2g",
    # Nobody else has to reach it, and the host's name need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Else the first statement makes a directory wherever the user happens to be.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "pgtide-warehouse"),
    # The default starts eleven processes per micro-batch for links and permissions.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}

DAEMON = {"spark.python.daemon.module": "pgtide.spark.python_daemon"}
"""For workers that run in this interpreter, and so have pgtide; those of a cluster need not."""

PER_CORE = (
    "spark.sql.shuffle.partitions",
    # Delta reads the state of a table in 50 tasks by default: seconds for every small one.
    "spark.databricks.delta.snapshotPartitions",
)
"""Numbers of tasks; more of them than cores is only cost in local mode."""

RUNTIME = {
    # With Spark's INT96 other readers of Delta misread far dates.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

VALUE_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that print the text of every error, row values included."""

LOG4J = Path(__file__).with_name("log4j2.properties")

COMPILE_ALL = "-XX:-DontCompileHugeMethods"
"""Java leaves methods over 8000 bytes to its interpreter, and Spark writes such methods for tables
of a few columns: decoding then takes four times as long."""

SECRETS = re.compile(r"secret|password|token|(access|account)[._]?key", re.IGNORECASE)
"""Names of settings that Java is given when it runs: those it starts with are in process lists."""

JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def session(**conf: object) -> SparkSession:
    """The running Spark session, or a new one with Delta; ``conf`` are settings of Spark.

    ``pgtide.session(**{"spark.master": "local[4]", "spark.driver.memory": "8g"})``
    """
    spark = start(conf)
    register(spark)
    return spark


def start(conf: Mapping[str, object]) -> SparkSession:
    """The same without the format ``pgtide``: registering it starts Python workers."""
    given = {name: _text(value) for name, value in conf.items()}
    builder = SparkSession.Builder()
    # By the context: which session is the active one is a matter of each thread.
    running = SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    settings = given if running else _settings(given)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not running:
        # Read by the JVM when it starts, and by it handed to the Python workers.
        os.environ["JAVA_HOME"] = str(java.find().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        _start_java(settings)
    return prepare(builder.getOrCreate())


def _start_java(settings: Mapping[str, str]) -> None:
    """Start the JVM, if there is none, with all settings that anybody may see."""
    shown = [item for item in settings.items() if not SECRETS.search(item[0])]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))


def prepare(spark: SparkSession) -> SparkSession:
    """Refuse a session that pgtide cannot work with; set what can still be set."""
    check_session(spark)
    for name, value in RUNTIME.items():
        spark.conf.set(name, value)
    for name in VALUE_LOGGERS:
        # By this door: logging.getLogger would make one that PySpark's calls do not fit.
        PySparkLogger.getLogger(name).disabled = True
    return spark


def _settings(given: dict[str, str]) -> dict[str, str]:
    """Everything a new session starts with."""
    settings = DEFAULTS | RUNTIME | given
    cores = local_cores(settings["spark.master"])
    if cores:
        own = DAEMON if _runs_workers(settings) else {}
        settings = LOCAL | own | dict.fromkeys(PER_CORE, str(cores)) | settings
    jars = [str(jar) for jar in _jars(settings, given)]
    if jars:
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *jars]))
    if DELTA["spark.sql.extensions"] not in settings["spark.sql.extensions"].split(","):
        settings["spark.sql.extensions"] += "," + DELTA["spark.sql.extensions"]
    for name in JAVA_OPTIONS:
        settings[name] = f"{COMPILE_ALL} {settings.get(name, '')}".strip()
    options = settings["spark.driver.extraJavaOptions"]
    if "log4j2.configurationFile" not in options:
        quiet = f"-Dlog4j2.configurationFile={LOG4J.as_uri()}"
        settings["spark.driver.extraJavaOptions"] = f"{quiet} {options}"
    return settings


def _jars(settings: Mapping[str, str], given: Mapping[str, str]) -> list[Path]:
    """What Spark needs and the caller does not name."""
    named = f"{settings.get('spark.jars', '')},{settings.get('spark.jars.packages', '')}"
    jars = [] if "io.delta:delta-spark" in named else delta_jars(given)
    if S3 not in named and any(name.startswith(S3A) for name in settings):
        jars += s3_jars(given)
    return jars


def _runs_workers(settings: Mapping[str, str]) -> bool:
    """Whether Python workers of a local session run in this interpreter."""
    given = settings.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    return given == sys.executable


def local_cores(master: str) -> int:
    """How many cores a master in this process uses; 0 for a cluster."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\d+|\*)(?:,\s*\d+)?\]", master)
    if not found:
        return 0
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
