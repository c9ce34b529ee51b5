"""No false difference while the source is written to without a pause."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.pipeline.running import PipelineRun
from pgtide.verify import moment
from pgtide.verify.report import PipelineReport
from tests.fixtures.capture import Captured
from tests.fixtures.waiting import wait_until
from tests.verify.following import following
from tests.verify.lake import lake_config, verify
from tests.verify.replica import Replica

TABLES = """CREATE TABLE t (id bigint PRIMARY KEY, v text, n numeric);
CREATE TABLE named (a text, b int, doc text, n int, PRIMARY KEY (a, b));
ALTER TABLE named ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE emptied (id int PRIMARY KEY, v int);
INSERT INTO t SELECT n, 'v' || n, n FROM generate_series(1, 2000) n;
INSERT INTO named SELECT 'a' || n % 7, n, repeat('x', 3000) || n, n FROM generate_series(1, 300) n;
INSERT INTO bag SELECT n % 5, 'b' || n % 3 FROM generate_series(1, 200) n;
"""
STATEMENTS = (
    "UPDATE t SET v = v || '!', n = n + 0.10 WHERE id = %(k)s",
    "DELETE FROM t WHERE id = %(k)s",
    "INSERT INTO t VALUES (%(k)s, 'again', %(r)s) ON CONFLICT DO NOTHING",
    "INSERT INTO t VALUES (%(fresh)s, 'new', NULL)",
    "UPDATE t SET id = %(fresh)s WHERE id = %(k)s",
    "UPDATE named SET n = n + 1 WHERE b = %(b)s",
    "UPDATE named SET doc = repeat('y', 3000) || %(r)s WHERE b = %(b)s",
    "UPDATE named SET a = 'z' || %(r)s WHERE b = %(b)s",
    "INSERT INTO bag VALUES (%(r)s %% 5, 'b' || %(r)s %% 3)",
    "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = %(r)s %% 5 LIMIT 1)",
)
PACE_S = 0.05  # between the transactions of a writer
EMPTIED = "INSERT INTO emptied VALUES (%(fresh)s, 1)"


class Writer(threading.Thread):
    """Transactions of all kinds; now and then one that stays open for long, or rolls back."""

    def __init__(self, captured: Captured, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._captured = captured
        self._random = random.Random(number)
        self._statements = (EMPTIED,) if number == 0 else STATEMENTS
        self._fresh = 10_000_000 * (number + 1)
        self._stop_writing = stop
        self.transactions = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._captured.database.connect(autocommit=False) as connection:
                while not self._stop_writing.is_set():
                    self._transaction(connection)
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        draw = self._random
        try:
            for _ in range(draw.randint(1, 4)):
                self._fresh += 1
                values = {"k": draw.randint(1, 2000), "b": draw.randint(1, 300)}
                values |= {"fresh": self._fresh, "r": draw.randint(1, 10**6)}
                connection.execute(draw.choice(self._statements).encode(), values)
            if self._statements == (EMPTIED,) and self.transactions % 200 == 40:
                connection.execute("TRUNCATE emptied")
            if draw.random() < 0.02:
                self._stop_writing.wait(0.7)  # a long transaction
            connection.rollback() if draw.random() < 0.05 else connection.commit()
            self.transactions += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            connection.rollback()
        self._stop_writing.wait(PACE_S)


@contextmanager
def writing(captured: Captured, writers: int) -> Iterator[list[Writer]]:
    stop = threading.Event()
    threads = [Writer(captured, number, stop) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    for thread in threads:
        if thread.error is not None:
            raise thread.error


@contextmanager
def running(spark: SparkSession, captured: Captured, config: Config) -> Iterator[None]:
    """Capture and pipeline, each in a thread."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            PipelineRun(spark, config, "lake", stop=stop).run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    with captured.capturing():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
    assert not failures


def check(report: PipelineReport) -> None:
    wrong = [table for table in report.tables if not table.equal]
    assert not wrong, wrong


@pytest.fixture(autouse=True)
def unyielding(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a TRUNCATE may wait for longer than verifications let it."""
    monkeypatch.setattr(moment, "YIELD_S", 3600)


def verify_for(
    spark: SparkSession,
    captured: Captured,
    seconds: float,
    config: Config | None = None,
    least: int = 1,
) -> None:
    """Verify for some time, and until ``least`` verifications are finished."""
    captured.run(TABLES)
    config = config or lake_config(captured, interval="100ms")
    passes, flying = 0, 0
    with running(spark, captured, config), writing(captured, 4) as writers:
        wait_until(lambda: all(writer.transactions for writer in writers), "writers")
        until = time.monotonic() + seconds
        while time.monotonic() < until or passes < least:
            report = verify(spark, config)
            check(report)
            passes += 1
            flying += sum(table.in_flight for table in report.tables)
            for writer in writers:
                assert writer.error is None, writer.error
        assert flying, "rows were in flight"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_constant_writes(spark: SparkSession, captured: Captured) -> None:
    verify_for(spark, captured, 8.0)


def follow_for(replica: Replica, seconds: float, **sink: str) -> int:
    """How often another database that follows closely was verified."""
    replica.run(TABLES.partition("INSERT")[0])
    replica.captured.run("INSERT" + TABLES.partition("INSERT")[2])
    settings = {"type": "postgres", "url": replica.database.url, **sink}
    config = replica.config(sink=settings)
    passes, flying = 0, 0
    with following(replica) as follower, writing(replica.captured, 4) as writers:
        wait_until(lambda: all(writer.transactions for writer in writers), "writers")
        until = time.monotonic() + seconds
        while time.monotonic() < until or not (passes and flying):
            report = replica.verify(config, run_here=False)
            check(report)
            passes += 1
            flying += sum(table.in_flight for table in report.tables)
            errors = [follower.error, *(writer.error for writer in writers)]
            assert not any(errors), errors
    return passes


@pytest.mark.parametrize(
    "consistency", ["transaction", pytest.param("table", marks=pytest.mark.slow)]
)
def test_constant_writes_that_are_followed(replica: Replica, consistency: str) -> None:
    assert follow_for(replica, 5.0, consistency=consistency)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_constant_writes_that_are_followed_for_long(replica: Replica) -> None:
    assert follow_for(replica, 300.0) > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_constant_writes_into_another_database(spark: SparkSession, replica: Replica) -> None:
    config = replica.config(interval="100ms")
    verify_for(spark, replica.captured, 30.0, config)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_constant_writes_for_ten_minutes(spark: SparkSession, captured: Captured) -> None:
    verify_for(spark, captured, 600.0, least=5)
