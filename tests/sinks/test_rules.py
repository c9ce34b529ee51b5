"""Rules in pipelines. Those that cannot do what they seem to say stop one, whatever its sink."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from pgtide.config import Config, load
from pgtide.errors import ConfigError
from pgtide.pipeline.running import PipelineRun
from tests.fixtures.capture import Captured
from tests.sinks.lakes import rows, table

SECRET = "swordfish"

SINKS: list[dict[str, Any]] = [
    {"type": "delta", "mode": "mirror"},
    {"type": "delta", "mode": "history"},
    {"type": "delta", "mode": "pivot"},
    {"type": "file", "format": "jsonl"},
    {"type": "file", "format": "parquet"},
]


def refused(spark: SparkSession, captured: Captured, sink: dict[str, Any], rule: Any) -> str:
    """What a pipeline says that stops; nothing of the rows is in its target."""
    captured.capture()
    target = captured.directory / "target"
    pipeline = {"sink": {**sink, "path": str(target)}, "rules": [rule]}
    config = Config.model_validate({**captured.settings, "pipelines": {"p": pipeline}})
    with pytest.raises(ConfigError) as caught:
        PipelineRun(spark, config, "p").run(until_current=True)
    files = [file for file in target.rglob("*") if file.is_file()]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    return caught.value.message


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.get("mode") or sink["format"])
def test_a_key_that_would_change(
    spark: SparkSession, captured: Captured, sink: dict[str, Any]
) -> None:
    captured.run(
        f"""CREATE TABLE t (id text PRIMARY KEY, note text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES ('{SECRET}', 'a');
"""
    )
    ways: list[dict[str, Any]] = [{"mask": {}}, {"hash": {"salt": "s"}}]
    for way in ways:
        rules = {"table": "public.t", "transform": {"column": "id", **way}}
        said = refused(spark, captured, sink, rules)
        assert said == f"rule 1 for public.t: {next(iter(way))} on id, which is part of the key"


@pytest.mark.parametrize("sink", [SINKS[0], SINKS[3]], ids=["mirror", "jsonl"])
def test_a_rule_for_a_partition(
    spark: SparkSession, captured: Captured, sink: dict[str, Any]
) -> None:
    captured.run(
        f"""CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10);
INSERT INTO t VALUES (1, '{SECRET}');
"""
    )
    masked = {"table": "public.t_low", "transform": {"column": "note", "mask": {}}}
    said = refused(spark, captured, sink, masked)
    assert said == "rule 1: public.t_low matches public.t_low, a partition of public.t"


PG_FLO_RULES = r"""
tables:
  users:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*"}}
    - type: transform
      column: phone
      parameters: {type: regex, pattern: "^(\\d{3})(\\d{4})$", replace: "($1) $2"}
      operations: [INSERT]
    - {type: filter, column: age, parameters: {operator: gte, value: 18, allow_empty_deletes: true}}
    - type: filter
      column: balance
      parameters: {operator: gte, value: 75.00}
      allow_empty_deletes: true
      operations: [INSERT, UPDATE, DELETE]
    - {type: filter, column: rating, parameters: {operator: gt, value: 4.0}, operations: [INSERT]}
    - {type: exclude_column, column: secret}
  tenants:
    - {type: filter, column: tenant, parameters: {operator: eq, value: 3}}
"""

PG_FLO_ROUTES = """
users:
  source_table: users
  destination_table: customers
  column_mappings: [{source: id, destination: customer_id}, {source: age, destination: age}]
  operations: [INSERT, UPDATE]
"""


def test_files_of_pg_flo(spark: SparkSession, captured: Captured) -> None:
    """Taken as they are: events as pg_flo would emit them, and a mirror of what matches."""
    captured.run(
        f"""CREATE TABLE users (id int PRIMARY KEY, email text, phone text, age int,
    balance numeric(10,2), rating real, secret text);
INSERT INTO users VALUES (1, 'ann@x.org', '5551234', 25, 100.5, 4.5, '{SECRET}'),
    (2, 'bob@x.org', '5551234', 17, 75, 4.5, '{SECRET}'), (3, 'cid@x.org', NULL, 30, 80, 4, NULL),
    (4, 'dan@x.org', NULL, 40, 75, 5, NULL);
UPDATE users SET phone = '5554321' WHERE id = 1;
DELETE FROM users WHERE id = 3;
CREATE TABLE tenants (id int PRIMARY KEY, tenant int);
INSERT INTO tenants VALUES (1, 3), (2, 4);
DELETE FROM tenants;
"""
    )
    where = captured.directory
    (where / "rules.yaml").write_text(PG_FLO_RULES)
    (where / "routes.yaml").write_text(PG_FLO_ROUTES)
    given = {"rules_file": "rules.yaml", "routes_file": "routes.yaml"}
    files = {"sink": {"type": "file", "path": "files"}, "rules_file": "rules.yaml"}
    lake = {"sink": {"type": "delta", "path": "lake"}, "tables": ["public.users"], **given}
    settings = {**captured.settings, "pipelines": {"files": files, "lake": lake}}
    (where / "pgtide.yaml").write_text(yaml.safe_dump(settings))
    config = load(where / "pgtide.yaml", {})
    captured.capture()
    PipelineRun(spark, config, "files").run(until_current=True)
    emitted = [
        json.loads(line)
        for file in sorted((where / "files" / "public").glob("*/*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    changes = [event for event in emitted if event["op"] != "ddl"]
    shown = [(event["table"], event["op"], event["after"] or event["before"]) for event in changes]
    ann = {"id": "1", "email": "a*******g", "age": "25", "balance": "100.50", "rating": "4.5"}
    dan = {"id": "4", "email": "d*******g", "age": "40", "balance": "75.00", "rating": "5"}
    assert shown == [
        # Of the other's row nothing but the key is known when it goes: no rule says that it may.
        ("tenants", "insert", {"id": "1", "tenant": "3"}),
        ("users", "insert", {**ann, "phone": "(555) 1234"}),
        ("users", "insert", {**dan, "phone": None}),
        ("users", "update", {**ann, "phone": "5554321"}),
        ("users", "delete", {"id": "3"}),
    ]

    def mirrored() -> list[tuple[Any, ...]]:
        PipelineRun(spark, config, "lake").run(until_current=True)
        found = table(spark, captured, "lake", "customers")
        return sorted(rows(found, "customer_id", "age", "email"))

    assert mirrored() == [(1, 25, "a*******g"), (4, 40, "d*******g")]
    assert "secret" not in table(spark, captured, "lake", "customers").columns
    captured.run(
        """UPDATE users SET age = 10 WHERE id = 1;
UPDATE users SET age = 18 WHERE id = 2;
DELETE FROM users WHERE id = 4;
"""
    )
    captured.capture()
    stays = (4, 40, "d*******g")
    assert mirrored() == [(2, 18, "b*******g"), stays], "1 left, 2 came, deletes take no route"
