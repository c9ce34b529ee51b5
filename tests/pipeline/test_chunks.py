"""A snapshot is one LSN of any size: it is read in parts, and each of its rows arrives once."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.errors import LogError, TargetUnavailable
from pgtide.log.storage import Storage
from pgtide.log.writer import LogWriter
from pgtide.pipeline import delivery
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database
from tests.fixtures.history_rows import HistoryRows

NAME = "parts"
PARTS = 6


class Stopping:
    """Ends a pipeline between its target and its state, whenever it has written a batch anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int = 1000) -> None:
        self._written = 0
        self._last = 2 * times
        monkeypatch.setattr(delivery, "fault", self._fault)

    def _fault(self, point: str) -> None:
        self._written += point == "pipeline.written"
        if point == "pipeline.written" and self._written % 2 and self._written < self._last:
            raise TargetUnavailable("stopped")


def configure(captured: Captured, kind: str) -> Config:
    """A pipeline whose chunks are a part of what the log holds."""
    path = str(captured.directory / "target")
    sink = {"type": "file"} if kind == "file" else {"type": "delta", "mode": kind}
    settings = {"sink": {**sink, "path": path}}
    config = Config.model_validate({**captured.settings, "pipelines": {NAME: settings}})
    size = sum(file.size for file in captured.log.snapshot().files)
    small = config.pipelines[NAME].model_copy(update={"batch": size // PARTS})
    return config.model_copy(update={"pipelines": {NAME: small}})


def run_through(spark: SparkSession, config: Config) -> list[int]:
    """Run until it gets to the end; how many rows each batch had."""
    sizes: list[int] = []

    def on_batch(_: str, state: State) -> None:
        sizes.append(state.batch_rows)

    for _ in range(4 * PARTS):
        try:
            PipelineRun(spark, config, NAME, on_batch=on_batch).run(until_current=True)
            return sizes
        except TargetUnavailable:
            pass
    raise AssertionError("it does not get on")


def found(spark: SparkSession, captured: Captured, kind: str) -> dict[str, list[Any]]:
    """The ids that each table of the target has, with what made them."""
    target = captured.directory / "target" / "public"
    if kind == "file":
        return {table: file_rows(target / table) for table in ("t", "u")}
    rows = {}
    for table in ("t", "u"):
        frame = spark.read.format("delta").load(str(target / table))
        frame = frame.withColumnRenamed("_pgtide_op", "op")
        frame = frame if "op" in frame.columns else frame.selectExpr("*", "NULL AS op")
        rows[table] = sorted(tuple(row) for row in frame.select("id", "op").collect())
    return rows


def file_rows(directory: Path) -> list[tuple[int, str]]:
    lines = [line for file in sorted(directory.iterdir()) for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    positions = [Position.parse(event["position"]) for event in events]
    assert positions == sorted(positions), "files are in the order of the log"
    changes = [event for event in events if event["op"] != "ddl"]
    return sorted((int(event["after"]["id"]), event["op"]) for event in changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mirror", "history", "scd2", "file"])
def test_a_snapshot_and_a_large_transaction_in_parts(
    spark: SparkSession,
    database: Database,
    make_captured: MakeCaptured,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, x text)")
    database.execute("CREATE TABLE u (id int PRIMARY KEY, x text)")
    for table, rows in (("t", 400), ("u", 200)):
        database.execute(
            f"INSERT INTO {table} SELECT n, md5(n::text) FROM generate_series(1, {rows}) n"
        )
    captured = make_captured(database)
    lsn = HistoryRows(captured).snapshot("t", "u", chunk_rows=70)
    captured.run("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(401, 800) n")
    captured.capture()
    config = configure(captured, kind)
    Stopping(monkeypatch)
    sizes = run_through(spark, config)
    state = StateFile(Storage(config.log.path, config.log.storage), NAME).load()
    assert state is not None
    assert sum(chunk.lsn == lsn for chunk in state.chunks) > 2, "one LSN is several chunks"
    assert state.rows == 1001  # the snapshot's last row too
    assert max(sizes) < 400
    told = kind in ("history", "file")
    wanted = {
        "t": [(n, ("read" if n <= 400 else "insert") if told else None) for n in range(1, 801)],
        "u": [(n, "read" if told else None) for n in range(1, 201)],
    }
    assert found(spark, captured, kind) == wanted
    if kind in ("mirror", "scd2"):
        done = DeltaTable(str(captured.directory / "target" / "public" / "u")).history()
        assert "MERGE" not in {commit["operation"] for commit in done}
    else:
        # Another checkpoint cuts elsewhere.
        shutil.rmtree(captured.directory / "log" / "pipelines")
        captured.run("INSERT INTO u VALUES (1000)")
        captured.capture()
        run_through(spark, config)
        wanted["u"].append((1000, "insert"))
        assert found(spark, captured, kind) == wanted


@pytest.mark.parametrize("kind", ["mirror", pytest.param("history", marks=pytest.mark.slow)])
def test_a_snapshot_that_comes_by_the_stream(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Files of one commit, a batch each; then one of them is named in the wrong place."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nCREATE TABLE u (id int PRIMARY KEY);\n")
    captured.run("INSERT INTO u VALUES (1000)")
    captured.capture()
    config = configure(captured, kind)
    tiny = config.pipelines[NAME].model_copy(update={"batch": 1})
    before = PipelineRun(spark, config, NAME).run(until_current=True).batches
    config = config.model_copy(update={"pipelines": {NAME: tiny}})
    history = HistoryRows(captured)
    captured.execute("INSERT INTO t SELECT generate_series(1, 90)")
    history.snapshot("t", "u", chunk_rows=30)
    with monkeypatch.context() as patch:
        Stopping(patch, times=2)
        run_through(spark, config)
    state = StateFile(Storage(config.log.path, config.log.storage), NAME).load()
    assert state is not None
    assert state.batches == before + 5 + 1, "a file each, and the transaction"
    told = kind == "history"
    both = ["insert", "read"] if told else [None]
    wanted = {
        "t": sorted((n, op) for n in range(1, 91) for op in both),
        "u": [(1000, op) for op in both],
    }
    assert found(spark, captured, kind) == wanted

    monkeypatch.setattr(LogWriter, "commit", reversed_commit)
    history.snapshot("t", chunk_rows=30)
    with pytest.raises(LogError, match="out of order"):
        PipelineRun(spark, config, NAME).run(until_current=True)


def test_a_commit_behind_which_another_one_belongs(
    spark: SparkSession, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that was empty when the pipeline began: where its stream begins moves along."""
    sink = {"type": "file", "path": str(captured.directory / "target")}
    config = Config.model_validate({**captured.settings, "pipelines": {NAME: {"sink": sink}}})
    assert not PipelineRun(spark, config, NAME).run(until_current=True).chunks
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\n")
    captured.capture()
    stop, sizes = threading.Event(), list[int]()

    def on_batch(_: str, state: State) -> None:
        sizes.append(state.batch_rows)
        if len(sizes) > 1:
            stop.set()
            return
        captured.run(f"INSERT INTO t VALUES ({len(sizes)});\n")
        monkeypatch.setattr(LogWriter, "write_part", earlier_part)
        captured.capture()

    with pytest.raises(LogError, match="out of order"):
        PipelineRun(spark, config, NAME, stop=stop, on_batch=on_batch).run()
    assert len(sizes) == 1


_write_part = LogWriter.write_part


def earlier_part(self: LogWriter, rows: pa.Table) -> list[AddAction]:
    """Each row and one that claims to have been committed before all others."""
    place = rows.column_names.index("lsn")
    earlier = rows.set_column(place, "lsn", pa.array([1] * rows.num_rows, pa.int64()))
    return _write_part(self, pa.concat_tables([earlier, rows]))


_commit = LogWriter.commit


def reversed_commit(self: LogWriter, parts: list[Any], position: Lsn, timeline: int) -> None:
    _commit(self, parts[::-1], position, timeline)


def test_bounds_of_an_older_state(captured: Captured) -> None:
    """Chunks were cut between LSNs only, and their ends were numbers."""
    storage = Storage(captured.config.log.path)
    file = StateFile(storage, NAME)
    file.save(State.new(3, Position(Lsn(1)), [Position(Lsn(20), 5), Position.end_of(Lsn(30))]))
    path = Path(captured.config.log.path) / "pipelines" / NAME / "state.json"
    fields = json.loads(path.read_text())
    assert fields["chunks"] == ["0/14:5", f"0/1E:{2**63 - 1}"]
    path.write_text(json.dumps({**fields, "chunks": [20, 30]}))
    state = file.load()
    assert state is not None
    assert state.chunks == [Position.end_of(Lsn(20)), Position.end_of(Lsn(30))]
    assert state.boundary == Lsn(30)
