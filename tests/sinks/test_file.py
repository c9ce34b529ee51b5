"""Files hold every event of the log once, in order, as the rules leave it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.config.sinks import FileSettings
from pgtide.errors import PipelineError
from pgtide.log.formats import formatter
from pgtide.log.schema import FILE_SCHEMA
from pgtide.log.storage import Storage
from pgtide.pipeline.replaying import replay
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state_file import StateFile
from pgtide.sinks.chunks import LineMaker
from tests.fixtures.capture import Captured
from tests.fixtures.history_rows import HistoryRows

NAME = "files"


def deliver(spark: SparkSession, captured: Captured, sink: dict[str, Any], **settings: Any) -> Path:
    """Run a pipeline into files until it is current; where they are."""
    path = captured.directory / "files"
    pipeline = {"sink": {"type": "file", "path": str(path), **sink}, **settings}
    config = Config.model_validate({**captured.settings, "pipelines": {NAME: pipeline}})
    PipelineRun(spark, config, NAME).run(until_current=True)
    return path


def forget(captured: Captured) -> None:
    """Lose everything that the pipeline knew about itself."""
    shutil.rmtree(Path(captured.config.log.path) / "pipelines" / NAME)


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(directory.glob(f"*.{suffix}"))


def json_events(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in files(directory, "jsonl")
        for line in file.read_text().splitlines()
    ]


def logged(captured: Captured, table: str | None) -> list[dict[str, Any]]:
    """What the log itself says about a table, or about none."""
    form, now = formatter("native"), datetime.now(UTC)
    return [
        form(event, captured.log.source, now) for event in captured.events() if event.table == table
    ]


def test_every_event_once(spark: SparkSession, captured: Captured) -> None:
    captured.run(
        """CREATE TABLE t (id int PRIMARY KEY, name text, big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE "odd/name" (id int PRIMARY KEY);
CREATE SCHEMA _pgtide;
CREATE TABLE _pgtide.own (id int PRIMARY KEY);
INSERT INTO _pgtide.own VALUES (1);
CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
INSERT INTO t SELECT n, 'n' || n, repeat('x', 3000) FROM generate_series(1, 50) n;
UPDATE t SET name = E'a "b", c\n' WHERE id = 7;
UPDATE t SET id = 1000 WHERE id = 8;
DELETE FROM t WHERE id = 9;
INSERT INTO "odd/name" VALUES (1);
INSERT INTO parts VALUES (1, 'one');
TRUNCATE low;
SELECT pg_logical_emit_message(true, 'app', 'hello');
CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN 1;
"""
    )
    captured.capture()
    path = deliver(spark, captured, {"rotate": "20kB"})
    t = path / "public" / "t"
    assert json_events(t) == logged(captured, "t")
    assert len(files(t, "jsonl")) > 5
    assert all(file.stat().st_size <= 20 << 10 for file in files(t, "jsonl"))
    assert json_events(path / "public" / "odd~2Fname") == logged(captured, "odd/name")
    assert {event["op"] for event in json_events(path / "_messages")} == {"ddl", "message"}
    assert json_events(path / "_messages") == logged(captured, None)
    parts = [(e["op"], e["table"], e["after"]) for e in json_events(path / "public" / "parts")]
    changes = [part for part in parts if part[0] != "ddl"]
    assert changes == [
        ("insert", "parts", {"id": "1", "note": "one"}),
        ("truncate", "low", None),
    ]

    captured.run("ALTER TABLE t RENAME name TO title;\nTRUNCATE t;\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    first = {file: file.read_bytes() for file in files(t, "jsonl")}
    forget(captured)
    deliver(spark, captured, {})
    assert json_events(t) == logged(captured, "t"), "nothing lost, nothing twice"
    assert json_events(path / "~5Fpgtide" / "own") == logged(captured, "own")
    assert len(files(t, "jsonl")) == len(first) + 1
    assert all(file.read_bytes() == content for file, content in first.items())


RULES: dict[str, Any] = {
    "rules": [
        {"table": "public.t", "transform": {"column": "secret", "mask": {}}},
        {"table": "public.t", "filter": {"column": "kind", "operator": "eq", "value": "keep"}},
        {"table": "public.t", "exclude": ["kind"]},
        {"table": "public.t", "rename": {"price": "cost"}},
    ],
    "routes": [{"table": "public.t", "to": "shop.goods"}],
}

SCRIPT = """CREATE TABLE t (id int PRIMARY KEY, kind text, secret varchar(20), price numeric(6,2), at timestamptz);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'keep', 'abcdef', 1.50, '2024-05-06 07:08:09+00'), (2, 'drop', 'x', 2, NULL);
INSERT INTO t VALUES (3, 'keep', '', NULL, NULL);
UPDATE t SET price = 9 WHERE id IN (1, 2);
DELETE FROM t WHERE id = 3;
DELETE FROM t WHERE id = 2;
ALTER TABLE t ADD COLUMN extra int;
INSERT INTO t VALUES (4, 'keep', 'a,b"c', 4, NULL, 44);
"""  # noqa: E501


def test_csv_and_parquet_with_rules(spark: SparkSession, captured: Captured) -> None:
    captured.run(SCRIPT)
    captured.capture()
    path = deliver(spark, captured, {"format": "csv"}, tables=["public.t"], **RULES)
    state = StateFile(Storage(captured.config.log.path), NAME).load()
    assert state is not None
    assert (state.table_rows, state.withheld) == ({"public.t": 8}, {"public.t": 3})
    goods = path / "shop" / "goods"
    texts = [file.read_text() for file in files(goods, "csv")]
    rows = [row for text in texts for row in csv.DictReader(text.splitlines())]
    changes = [row for row in rows if row["op"] != "ddl"]
    assert [(r["op"], r["id"], r["secret"], r["cost"]) for r in changes] == [
        ("insert", "1", "a****f", "1.50"),
        ("insert", "3", "", ""),
        ("update", "1", "a****f", "9.00"),
        ("delete", "3", "", ""),
        ("insert", "4", "a***c", "4.00"),
    ]
    assert changes[-1]["extra"] == "44"
    assert {(r["schema"], r["table"]) for r in changes} == {("shop", "goods")}
    assert all("kind" not in row for row in changes)
    assert any(',3,"",,' in text for text in texts), "the empty text is not NULL"
    assert not (path / "_messages").exists()

    shutil.rmtree(path)
    forget(captured)
    path = deliver(spark, captured, {"format": "parquet"}, tables=["public.t"], **RULES)
    tables = [pq.read_table(file) for file in files(path / "shop" / "goods", "parquet")]
    typed = [row for table in tables for row in table.to_pylist() if row["op"] != "ddl"]
    assert [(row["op"], row["before"], row["after"]) for row in typed[:3]] == [
        ("insert", None, _goods(1, "a****f", "1.50", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC))),
        ("insert", None, _goods(3, "", None, None)),
        (
            "update",
            _goods(1, "a****f", "1.50", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
            _goods(1, "a****f", "9.00", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ),
    ]
    assert typed[-1]["after"]["extra"] == 44
    assert [json.loads(r["payload"])["tag"] for t in tables for r in t.to_pylist() if r["payload"]]

    shutil.rmtree(path)
    forget(captured)
    sink = {"format": "csv", "envelope": "pivot"}
    path = deliver(spark, captured, sink, tables=["public.t"], **RULES)
    texts = [file.read_text() for file in files(path / "shop" / "goods", "csv")]
    rows = [row for text in texts for row in csv.DictReader(text.splitlines())]
    assert len(texts[0].splitlines()[0].split(",")) == 9, "one key column, and eight"
    updated = [row for row in rows if row["crud_type"] == "u"]
    assert [(r["id"], r["change_field"], r["old_value"], r["new_value"]) for r in updated] == [
        ("1", "cost", "1.50", "9.00")
    ]
    assert all(row["datetime_inserted"].endswith("+00:00") for row in rows)


@pytest.mark.parametrize("format", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_what_a_pivot_cannot_hold(spark: SparkSession, captured: Captured, format: str) -> None:
    """Keys and times have types, so their texts may have to go elsewhere: once, as files do."""
    captured.run(
        """CREATE TABLE t (day date PRIMARY KEY, made timestamp, till date, secret date);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES ('infinity', '2024-01-01', 'infinity', NULL);
INSERT INTO t VALUES ('2024-02-29', 'infinity', NULL, 'infinity');
UPDATE t SET till = NULL;
DELETE FROM t WHERE day = 'infinity';
TRUNCATE t;
"""
    )
    captured.capture()
    pivot = {"created": "made", "updated": "secret"}
    sink = {"format": format, "envelope": "pivot", "pivot": pivot}
    rules = [{"table": "public.t", "transform": {"column": "secret", "null": True}}]
    for _ in range(2):
        path = deliver(spark, captured, sink, on_unrepresentable="null", rules=rules)
        forget(captured)
    assert len(files(path / "public" / "t", format)) == 1
    kept = json_events(path / "_quarantine" / "public" / "t")
    infinite = '{"day":"infinity"}'
    assert [(r["column"], r["key"], r["text"], r["reason"]) for r in kept] == [
        ("day", infinite, "infinity", "type"),
        ("made", '{"day":"2024-02-29"}', "infinity", "type"),
        ("day", infinite, "infinity", "type"),
        ("made", '{"day":"2024-02-29"}', "infinity", "type"),
        ("day", infinite, "infinity", "type"),
    ]
    changes = [event for event in captured.events() if event.op in ("insert", "update", "delete")]
    assert {(r["lsn"], r["seq"]) for r in kept} == {
        (int(event.position.lsn), event.position.seq) for event in changes
    }


def _goods(id_: int, secret: str, cost: str | None, at: datetime | None) -> dict[str, Any]:
    return {"id": id_, "secret": secret, "cost": cost and Decimal(cost), "at": at}


def test_replay_does_not_pretend(spark: SparkSession, captured: Captured) -> None:
    """What files hold is not written again, and not deleted either: that is said."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);")
    captured.capture()
    path = deliver(spark, captured, {})
    pipeline = {"sink": {"type": "file", "path": str(path)}}
    config = Config.model_validate({**captured.settings, "pipelines": {NAME: pipeline}})
    with pytest.raises(PipelineError, match="files are written once") as raised:
        replay(spark, config, NAME)
    assert str(path) in raised.value.hint
    before = json_events(path / "public" / "t")
    path.rename(captured.directory / "away")
    replay(spark, config, NAME)
    assert json_events(path / "public" / "t") == before != []


def test_keep_deletes_only_old_files_of_ours(spark: SparkSession, captured: Captured) -> None:
    captured.run("CREATE TABLE t (id int PRIMARY KEY);\nINSERT INTO t VALUES (1);\n")
    captured.capture()
    t = deliver(spark, captured, {}) / "public" / "t"
    (old,) = files(t, "jsonl")
    foreign = t / "notes.jsonl"
    foreign.write_text("{}")
    for file in (old, foreign):
        os.utime(file, (time.time() - 7200,) * 2)
    captured.run("INSERT INTO t VALUES (2);\n")
    captured.capture()
    deliver(spark, captured, {"keep": "1h"})
    foreign.unlink()
    assert [event["after"] for event in json_events(t)] == [{"id": "2"}]


@pytest.mark.parametrize("envelope", ["native", "debezium", "pgstream", "pg_flo"])
def test_lines_in_every_envelope(captured: Captured, envelope: str) -> None:
    """One JSON object per event, whatever is in it, cut into chunks that know their positions."""
    captured.run("CREATE TABLE t (id int PRIMARY KEY, note text);\n")
    captured.run("INSERT INTO t VALUES (1, E'two\\nlines \\u2028'), (2, NULL);\nDELETE FROM t;\n")
    captured.capture()
    now = datetime.now(UTC)
    log, events, form = captured.log, captured.events(), formatter(envelope)
    maker = LineMaker(log.shapes(), envelope, log.source, now, most=400)
    rows = pa.Table.from_batches(log.batches()).select(FILE_SCHEMA.names).combine_chunks()
    (batch,) = rows.to_batches()
    made = list(maker.chunks(batch))
    assert sum(count for count, _ in made) == len(events)
    assert len(made) > 1
    lines = [json.loads(line) for _, chunk in made for line in chunk.data.split(b"\n")[:-1]]
    assert lines == [json.loads(json.dumps(form(event, log.source, now))) for event in events]
    lows = [chunk.low for _, chunk in made]
    assert lows == sorted(lows)
    assert (lows[0], made[-1][1].high) == (events[0].position, events[-1].position)


def test_reads_and_no_sweeps(spark: SparkSession, captured: Captured) -> None:
    """A row that was read is an event, also to rules; a sweep is none, and none is left out."""
    history = HistoryRows(captured)
    captured.run("CREATE TABLE t (id int PRIMARY KEY, name text);\nCREATE TABLE u (LIKE t);\n")
    captured.run("INSERT INTO t VALUES (1, 'a'), (2, 'b');\nINSERT INTO u VALUES (1, 'u');\n")
    history.replace("t")
    history.replace("u")
    kept = {"column": "name", "operator": "eq", "value": "a"}
    rules = [{"table": "t", "filter": kept, "operations": ["insert"]}]
    path = deliver(spark, captured, {"envelope": "debezium"}, rules=rules)
    for table, wanted in (("t", [("c", "a"), ("r", "a")]), ("u", [("c", "u"), ("r", "u")])):
        events = [e for e in json_events(path / "public" / table) if e["op"] != "m"]
        assert [(event["op"], event["after"]["name"]) for event in events] == wanted
        assert [event["source"]["snapshot"] for event in events] == ["false", "incremental"]
    state = StateFile(Storage(captured.config.log.path), NAME).load()
    assert state is not None
    assert state.withheld == {"public.t": 2}


@pytest.mark.parametrize(
    ("format", "envelope"), [("csv", "debezium"), ("parquet", "pg_flo"), ("jsonl", "pivot")]
)
def test_forms_that_do_not_fit(format: str, envelope: str) -> None:
    with pytest.raises(ValueError, match=f"envelope {envelope} cannot be written as {format}"):
        FileSettings.model_validate(
            {"type": "file", "path": "x", "format": format, "envelope": envelope}
        )
