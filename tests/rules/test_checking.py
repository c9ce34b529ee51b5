"""What ``pgtide check`` says of rules, against a real catalog."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from pgtide import oids
from pgtide.cli import run_command as pgtide
from pgtide.config import Config, Pipeline
from pgtide.postgres.catalog import read_layouts
from pgtide.postgres.connection import connect
from pgtide.postgres.health import check_pipelines
from pgtide.postgres.verdict import Check
from pgtide.rules import sql
from pgtide.rules.checking import check_rules
from pgtide.rules.selecting import check_selection
from pgtide.rules.sql_checking import check_sql
from pgtide.shape import Column, Shape
from tests.fixtures.databases import Database, Server
from tests.fixtures.spark import Staying

TABLES = """
CREATE DOMAIN years AS int;
CREATE TABLE users (
    id int PRIMARY KEY, email text NOT NULL, age years, active bool, born date, doc jsonb,
    code char(3), amount numeric
);
CREATE TABLE orders (id int, line int, note varchar(20), PRIMARY KEY (id, line));
CREATE TABLE events (id int PRIMARY KEY, at timestamptz) PARTITION BY RANGE (id);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
"""


@pytest.fixture(scope="module")
def tables(server: Server) -> Iterator[Database]:
    database = Database.create(server)
    database.execute(TABLES)
    yield database
    database.drop()


@pytest.fixture(scope="module")
def shapes(tables: Database) -> list[Shape]:
    with connect(tables.url) as conn:
        return list(read_layouts(conn).values())


def pipeline(rules: str, routes: str = "[]", **sink: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "sink": sink or {"type": "delta", "path": "lake"},
            "rules": yaml.safe_load(rules),
            "routes": yaml.safe_load(routes),
        }
    )


def lines(shapes: list[Shape], found: Pipeline, level: str = "fail") -> list[Check]:
    return [check for check in check_rules({"lake": found}, shapes) if check.level == level]


FINE = """
- {table: public.users, filter: {column: age, operator: gte, value: 18}}
- {table: public.users, filter: {column: amount, operator: lt, value: "1e40"}}
- {table: "public.*", transform: {column: email, mask: {}}}
- {table: public.users, transform: {column: code, regex: {pattern: "^(a)", replace: "$1-"}}}
- {table: public.users, rename: {email: mail, id: user_id}}
- {table: public.users, filter: {column: mail, operator: contains, value: "@"}}
- {table: public.users, transform: {column: age, sql: "age + 1"}}
- {table: public.users, filter: {column: age, operator: gt, value: 3}}
- {table: public.users, exclude: [doc]}
- {table: public.events, filter: {column: at, operator: gt, value: "2024-01-01"}}
"""


def test_fine(shapes: list[Shape], tables: Database) -> None:
    found = pipeline(FINE, "[{table: public.users, to: crm.customers, rename: {mail: email}}]")
    assert lines(shapes, found) == lines(shapes, found, "warn") == []
    settings = {
        "source": {"url": tables.url},
        "log": {"path": "log"},
        "pipelines": {"lake": found, "plain": pipeline("[]", type="stdout")},
    }
    config = Config.model_validate(settings)
    with connect(tables.url) as conn:
        (check,) = check_pipelines(conn, config)
    assert (check.name, check.level) == ("rules", "ok")
    assert check.message == "lake: 10 rules and 1 routes fit 4 tables"


@pytest.mark.parametrize(
    ("rule", "message", "hint"),
    [
        ("filter: {column: agee, operator: eq, value: 1}", "there is no column agee", "mean age?"),
        ("filter: {column: active, operator: gt, value: true}", "gt cannot compare column act", ""),
        ("filter: {column: doc, operator: contains, value: a}", "contains cannot compare", "SQL"),
        ("filter: {column: age, operator: gt, value: old}", "its value is not a number", ""),
        ("filter: {column: born, operator: gt, value: '2024-02-30'}", "its value is not a", ""),
        ("transform: {column: age, mask: {}}", "mask works on text, column age is a number", ""),
        ("transform: {column: doc, regex: {pattern: a, replace: b}}", "regex works on text", ""),
        ("transform: {column: email, regex: {pattern: 'a(', replace: b}}", "does not compile", ""),
        ("transform: {column: email, regex: {pattern: '[[:alpha:]]', replace: b}}",
         "[:alpha:] inside a class", "Alpha"),
        ("transform: {column: email, regex: {pattern: '(?x)a', replace: b}}", "other flags", ""),
        ("transform: {column: email, regex: {pattern: 'a(?#b)', replace: b}}", "is not known", ""),
        ("transform: {column: id, hash: {salt: s}}", "hash on id, which is part of the key", ""),
        ("transform: {column: id, null: true}", "null on id, which is part of the key", ""),
        ("exclude: [id]", "it takes away id, which is part of the key", "keep it"),
        ("include: [email]", "it takes away id, which is part of the key", ""),
        ("include: [id, mail]", "there is no column mail", "Did you mean email? Or say optional"),
        ("exclude: [zzz]", "there is no column zzz", "Correct the column's name, or say optional"),
        ("rename: {email: id}", "two columns would be called id", ""),
    ],
)  # fmt: skip
def test_faults(shapes: list[Shape], rule: str, message: str, hint: str) -> None:
    (check,) = lines(shapes, pipeline(f"[{{table: public.users, {rule}}}]"))
    assert check.message.startswith("lake: rule 1 (public.users): ")
    assert message in check.message
    assert hint in check.hint


def test_order_matters(shapes: list[Shape]) -> None:
    rules = """[{table: public.users, exclude: [email]},
                {table: public.users, transform: {column: email, mask: {}}}]"""
    (check,) = lines(shapes, pipeline(rules))
    assert "rule 2 (public.users): there is no column email" in check.message
    rules = """[{table: public.users, rename: {id: key}},
                {table: public.users, transform: {column: key, hash: {salt: s}}}]"""
    assert "rule 2 (public.users): hash on key" in lines(shapes, pipeline(rules))[0].message


def test_keys_of_targets_without_state(shapes: list[Shape]) -> None:
    rules = "[{table: public.users, exclude: [id]}]"
    assert lines(shapes, pipeline(rules, type="stdout")) == []
    assert lines(shapes, pipeline(rules, type="delta", path="x", mode="history")) == []
    assert len(lines(shapes, pipeline(rules, type="delta", path="x", mode="scd2"))) == 1


def test_patterns(shapes: list[Shape]) -> None:
    rules = "[{table: public.user, exclude: [x]}, {table: 'public.*', exclude: [emial]}]"
    found = pipeline(rules, "[{table: 'audit.*', to: x}]")
    unmatched = [check.message for check in lines(shapes, found, "warn")]
    assert unmatched == [
        "lake: rule 1: public.user matches no table of the pipeline",
        "lake: route 1: audit.* matches no table of the pipeline",
    ]
    (check,) = lines(shapes, found)
    assert "no table that public.* matches has a column emial" in check.message


def test_routes(shapes: list[Shape]) -> None:
    (check,) = lines(shapes, pipeline("[]", "[{table: public.users, to: orders}]"))
    assert "both go to public.orders" in check.message
    (check,) = lines(shapes, pipeline("[]", "[{table: public.users, rename: {x: y}}]"))
    assert "route of public.users: there is no column x" in check.message
    merged = pipeline("[]", "[{table: public.users, to: orders}]", type="stdout")
    assert lines(shapes, merged) == []
    (check,) = lines(shapes, merged, "warn")
    assert "both go to public.orders" in check.message


@pytest.mark.parametrize("table", ["public.events_1", "public.*_1"])
def test_a_partition_is_no_table_of_its_own(shapes: list[Shape], table: str) -> None:
    """Its rows are the root's: such a rule would never be applied."""
    rule = f"[{{table: '{table}', filter: {{column: id, operator: gt, value: 1}}}}]"
    route = f"[{{table: '{table}', to: elsewhere}}]"
    for found, place in ((pipeline(rule), "rule 1"), (pipeline("[]", route), "route 1")):
        assert lines(shapes, found, "warn") == []
        (check,) = lines(shapes, found)
        said = f"lake: {place}: {table} matches public.events_1, a partition of public.events"
        assert check.message == said
        assert check.hint == "Name public.events, or write a pattern that matches it too."
    assert lines(shapes, pipeline(rule.replace(table, "public.events*"))) == []
    (partition,) = [shape for shape in shapes if shape.table == "events_1"]
    another = replace(partition, id=partition.id + 1, oid=1, root_oid=0)
    assert lines([*shapes, another], pipeline(rule)) == [], "the name is another table's now"


def test_the_key_is_what_identifies_a_row(shapes: list[Shape]) -> None:
    (users,) = (shape for shape in shapes if shape.table == "users")
    columns = tuple(replace(c, identity=c.name == "email") for c in users.columns)
    by_index = [replace(users, replica_identity="i", columns=columns)]
    masked = pipeline("[{table: public.users, transform: {column: email, mask: {}}}]")
    (check,) = lines(by_index, masked)
    assert "mask on email, which is part of the key" in check.message


def test_a_table_of_which_nothing_would_be_left(shapes: list[Shape]) -> None:
    """A list of what may leave is no less one for a table that has none of it."""
    listed = "[{table: 'public.[uo]*', include: [email, born]}]"
    (check,) = lines(shapes, pipeline(listed, type="stdout"))
    assert check.message == "lake: rule 1 (public.orders): no column would be left"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("filter: {sql: 'age > ('}", "rule 1 for public.users: its SQL cannot be used"),
        ("filter: {sql: 'age >'}", "rule 1 for public.users: its SQL cannot be used"),
        ("filter: {sql: 'nope > 1'}", "rule 1 for public.users: its SQL cannot be used"),
        ("filter: {sql: 'sum(age) > 1'}", "rule 1 for public.users: its SQL cannot be used"),
        ("filter: {sql: 'age + 1'}", "rule 1 for public.users: its SQL gives int, a filter"),
        ("transform: {column: age, sql: 'nope'}", "rule 1 for public.users: its SQL cannot"),
        (
            "transform: {column: email, regex: {pattern: '\\p{Klingon}', replace: ''}}",
            "rule 1 for public.users: Java does not compile its pattern",
        ),
    ],
)
def test_sql(spark: SparkSession, shapes: list[Shape], rule: str, message: str) -> None:
    fine = "{table: public.users, filter: {sql: 'age > 1'}}"
    faulty = pipeline(f"[{{table: public.users, {rule}}}, {fine}]")
    (check,) = check_sql({"lake": faulty, "fine": pipeline(f"[{fine}]")}, shapes)
    assert check.level == "fail"
    assert check.message.startswith(f"lake: {message}")


def test_sql_of_many_tables_is_few_questions(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that differ in everything but the types of what the SQL names."""
    asked: list[str] = []
    ask = sql._ask

    def counted(text: str) -> DataType | str:
        asked.append(text)
        return ask(text)

    monkeypatch.setattr(sql, "_ask", counted)
    kinds = [oids.TEXT, oids.NUMERIC, oids.DATE]
    tables = [
        Shape(
            1000 + n,
            "public",
            f"t{n}",
            (
                Column("id", oids.INT4, attnum=1, key=True, identity=True),
                *(Column(f"c{at}", kinds[at % 3], attnum=at + 2) for at in range(n)),
                Column("tenant", oids.DATE if n == 7 else oids.INT4, attnum=n + 2),
            ),
        )
        for n in range(80)
    ]
    filtered = pipeline("[{table: 'public.*', filter: {sql: 'tenant + 1 > id'}}]")
    plain = pipeline("[{table: 'public.*', exclude: [c1]}]")
    mixed = pipeline(
        "[{table: 'public.*', transform: {column: tenant, sql: 'abs(tenant)'}},"
        " {table: 'public.t8', filter: {sql: 'tenant > 0'}}]"
    )
    found = list(check_sql({"lake": filtered, "plain": plain, "mixed": mixed}, tables))
    assert [check.message.split(":")[1] for check in found] == [
        " rule 1 for public.t7",
        " rule 1 for public.t7",
    ]
    assert len(asked) == 5, "each with a number and with a date, and that of t8"
    list(check_sql({"lake": filtered}, tables))
    assert len(asked) == 7, "settings of the session may be others by now"


def test_sql_as_the_command_says_it(
    spark: SparkSession,
    tables: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = [
        {"table": "users", "filter": {"sql": "nope > 1"}},
        {"table": "orders", "filter": {"column": "nope", "operator": "eq", "value": 1}},
        {"table": "orders", "filter": {"sql": "line > 1"}},
    ]
    settings = {
        "source": {"url": tables.url},
        "log": {"path": str(tmp_path / "log")},
        "pipelines": {"out": {"sink": {"type": "stdout"}, "rules": rules}},
    }
    config = tmp_path / "pgtide.yaml"
    config.write_text(yaml.safe_dump(settings))
    monkeypatch.setattr("pgtide.spark.session.start", lambda conf: Staying(spark))
    assert pgtide(["-c", str(config), "check", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    found = [check for check in checks if check["name"] == "rules"]
    assert [check["level"] for check in found] == ["fail", "fail"]
    assert "rule 2 (public.orders): there is no column nope" in found[0]["message"]
    assert "rule 1 for public.users: its SQL cannot be used: [UNRES" in found[1]["message"]


def test_what_a_pipeline_selects(shapes: list[Shape]) -> None:
    settings = {
        "sink": {"type": "stdout"},
        "tables": ["public.user", "shop.*", "public.events_1", "public.events"],
    }
    found = list(check_selection({"out": Pipeline.model_validate(settings)}, shapes))
    assert [(check.level, check.message) for check in found] == [
        ("warn", "out: the pattern 'public.user' matches no table"),
        ("warn", "out: the pattern 'shop.*' matches no table"),
        ("warn", "out: the pattern 'public.events_1' matches no table"),
    ]
    assert "public.users" in found[0].hint


PIVOT = {
    "key": ["idd"],
    "columns": ["nothing", "email"],
    "created": "born_at",
    "updated": "age",
}


@pytest.mark.parametrize(
    "sink",
    [
        {"type": "delta", "path": "x", "mode": "pivot", "pivot": PIVOT},
        {"type": "file", "path": "x", "format": "csv", "envelope": "pivot", "pivot": PIVOT},
    ],
)
def test_columns_of_a_pivot(shapes: list[Shape], sink: dict[str, Any]) -> None:
    rules = [{"table": "users", "rename": {"id": "idd"}}, {"table": "users", "exclude": ["email"]}]
    settings = {"sink": sink, "tables": ["public.users"], "rules": rules}
    found = list(check_selection({"p": Pipeline.model_validate(settings)}, shapes))
    assert [(check.level, check.message) for check in found] == [
        ("fail", "p: public.users has no column nothing, which pivot.columns names"),
        ("fail", "p: public.users has no column email, which pivot.columns names"),
        ("fail", "p: public.users has no column born_at, which pivot.created names"),
        ("fail", "p: column age of public.users, which pivot.updated names, is no time"),
        ("warn", "p: updates and deletes of public.users are refused: they lack the old row"),
    ]
    assert found[-1].hint == "Run: ALTER TABLE public.users REPLICA IDENTITY FULL;"


def test_a_pivot_of_partitions_and_keys(shapes: list[Shape]) -> None:
    sink = {"type": "delta", "path": "x", "mode": "pivot"}
    bag = replace(shapes[0], columns=tuple(replace(c, key=False) for c in shapes[0].columns))
    found = list(check_selection({"p": Pipeline.model_validate({"sink": sink})}, [bag]))
    assert [check.level for check in found] == ["fail", "warn"]
    assert found[0].message == f"p: {bag.name} has no key, and pivot.key names none"
    settings = {"sink": sink, "tables": ["public.events"]}
    found = list(check_selection({"p": Pipeline.model_validate(settings)}, shapes))
    messages = ["p: updates and deletes of public.events_1 are refused: they lack the old row"]
    assert [check.message for check in found] == messages, "rows are the partitions'"


def test_no_spark_is_loaded() -> None:
    probe = "import pgtide.postgres.health, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
