"""A rename at the source does not take values out of what rules hide, whatever the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgtide.config import Config
from pgtide.config.rules import Rule
from pgtide.errors import PipelineError
from pgtide.log.storage import Storage
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.rules import compile_rules
from pgtide.rules.hiding import Hiding
from tests.fixtures.capture import Captured
from tests.fixtures.databases import Database
from tests.sinks.postgres.replicas import target_database

SECRET = "1234-5678-9012"
MASK = {"table": "*.cards", "transform": {"column": "number", "mask": {}}}
SINKS: list[dict[str, Any]] = [
    {"type": "file", "path": "target"},
    {"type": "stdout"},
    {"type": "postgres", "mode": "history"},
    {"type": "delta", "mode": "mirror", "path": "target"},
    {"type": "delta", "mode": "history", "path": "target"},
]


@pytest.fixture
def past(database: Database) -> Iterator[Database]:
    yield from target_database(database)


def run(
    spark: SparkSession, captured: Captured, sink: dict[str, Any], *rules: Any, **pipeline: Any
) -> State:
    captured.capture()
    if "path" in sink:
        sink = {**sink, "path": str(captured.directory / sink["path"])}
    pipeline = {"sink": sink, "rules": list(rules), **pipeline}
    config = Config.model_validate({**captured.settings, "pipelines": {"p": pipeline}})
    return PipelineRun(spark, config, "p").run(until_current=True)


def written(captured: Captured) -> bytes:
    files = (captured.directory / "target").rglob("*")
    return b"".join(file.read_bytes() for file in files if file.is_file())


@pytest.mark.parametrize(
    "sink",
    [*SINKS[:2], *(pytest.param(sink, marks=pytest.mark.slow) for sink in SINKS[2:])],
    ids=["file", "stdout", "postgres", "mirror", "history"],
)
def test_a_column_that_is_renamed(
    spark: SparkSession, captured: Captured, past: Database, sink: dict[str, Any], capfd: Any
) -> None:
    sink = {**sink, "url": past.url} if sink["type"] == "postgres" else sink
    captured.run("CREATE TABLE cards (id int PRIMARY KEY, number text, note text);\n")
    captured.run(f"INSERT INTO cards VALUES (1, '{SECRET}');\n")
    run(spark, captured, sink, MASK)
    captured.run("ALTER TABLE cards RENAME number TO digits;\n")  # in a batch of its own
    with pytest.raises(PipelineError, match="a rename would show") as caught:
        run(spark, captured, sink, MASK)
    assert "column public.cards.number became public.cards.digits" in caught.value.detail
    assert "Repeat for public.cards.digits the rules that say" in caught.value.hint
    assert "exclude: [digits], optional: true" in caught.value.hint
    assert "either way all of them want optional: true" in caught.value.hint
    captured.run(f"INSERT INTO cards VALUES (2, '{SECRET}');\n")
    with pytest.raises(PipelineError, match="a rename would show"):
        run(spark, captured, sink, MASK)
    again = {"table": "*.cards", "transform": {"column": "digits", "mask": {}}}
    run(spark, captured, sink, MASK, again)
    captured.run(f"INSERT INTO cards VALUES (3, '{SECRET}');\n")
    run(spark, captured, sink, MASK, again)
    assert SECRET.encode() not in written(captured)
    assert SECRET not in capfd.readouterr().out
    if "url" in sink:
        assert past.execute("SELECT id, digits FROM cards ORDER BY 1") == [
            (number, "1************2") for number in (1, 2, 3)
        ]


RENAMED = "RENAME owner TO o"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "statement", "escapes"),
    [
        ({"transform": {"column": "number", "mask": {}}}, "RENAME number TO digits", True),
        ({"exclude": ["number"]}, "RENAME number TO digits", True),
        ({"filter": {"column": "owner", "operator": "eq", "value": "ann"}}, RENAMED, True),
        ({"include": ["id", "owner"]}, "RENAME number TO digits", False),
        ({"include": ["id", "owner", "digits"]}, "RENAME number TO digits", False),
        ({"transform": {"column": "digits", "mask": {}}}, "RENAME number TO digits", False),
        ({"transform": {"column": "number", "mask": {}}}, RENAMED, False),
        ({"transform": {"column": "number", "mask": {}}}, "DROP COLUMN number", False),
        ({"transform": {"column": "number", "mask": {}}}, "RENAME TO cards_of_old", False),
        ({"transform": {"column": "number", "mask": {}}}, "RENAME TO others", True),
        ({"include": ["id", "owner"]}, "RENAME TO others", True),
        ({"filter": {"sql": "id > 0"}}, "RENAME TO others", True),
        ({"rename": {"number": "n"}}, "RENAME number TO digits", False),
    ],
)
def test_what_is_refused(
    spark: SparkSession, captured: Captured, rule: dict[str, Any], statement: str, escapes: bool
) -> None:
    sink = SINKS[0]
    captured.run("CREATE TABLE cards (id int PRIMARY KEY, number text, owner text);\n")
    captured.run(f"INSERT INTO cards VALUES (1, '{SECRET}', 'ann');\n")
    captured.run(f"ALTER TABLE cards {statement};\n")
    given = {"table": "*.cards*", "optional": True, **rule}
    if not escapes:
        run(spark, captured, sink, given)
        return
    with pytest.raises(PipelineError, match="a rename would show") as caught:
        run(spark, captured, sink, given)
    if "RENAME TO" in statement:
        assert "or take that table out of the pipeline's tables" in caught.value.hint
        captured.run(f"INSERT INTO others VALUES (2, '{SECRET}', 'bob');\n")
        run(spark, captured, sink, given, tables=["*.*", "!public.others"])
        assert not list((captured.directory / "target").rglob("*/others/*"))


def test_a_partition_that_is_detached_is_parked(spark: SparkSession, captured: Captured) -> None:
    """Its rows are the root's no more; the others go on, and it comes back when rules fit it."""
    captured.run(
        f"""CREATE TABLE cards (id int PRIMARY KEY, number text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF cards FOR VALUES FROM (0) TO (10);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO cards VALUES (1, '{SECRET}');
"""
    )
    sink = SINKS[0]
    run(spark, captured, sink, MASK, on_error="park")
    captured.run("ALTER TABLE cards DETACH PARTITION low;\n")
    captured.run(f"INSERT INTO low VALUES (2, '{SECRET}');\nINSERT INTO other VALUES (1);")
    state = run(spark, captured, sink, MASK, on_error="park")
    assert state.parked.keys() == {"public.low"}
    assert "pgtide resume --pipeline p" in state.parked["public.low"].hint
    assert state.table_rows["public.other"] == 1
    StateFile(Storage(captured.config.log.path), "p").ask_resume(None)
    rule = {**MASK, "table": "*.low"}
    assert not run(spark, captured, sink, MASK, rule, on_error="park").parked
    assert SECRET.encode() not in written(captured)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("RENAME owner TO o", "by which nothing filters rows"),
        ("RENAME number TO o", "of which no rule says anything"),
    ],
)
def test_a_name_that_another_kind_of_rule_knows(
    spark: SparkSession, captured: Captured, statement: str, what: str
) -> None:
    """Who filters by a column does not hide it, and who hides it does not filter by it."""
    owner = {"operator": "eq", "value": "ann"}
    by = [{"table": "*.cards", "optional": True, "filter": {"column": "owner", **owner}}]
    masks = [{**MASK, "transform": {"column": column, "mask": {}}} for column in ("number", "o")]
    rules = [*by, *masks]
    if "number" in statement:
        rules = [masks[0], {**by[0], "filter": {"column": "o", **owner}}]
    captured.run("CREATE TABLE cards (id int PRIMARY KEY, number text, owner text);\n")
    captured.run(f"ALTER TABLE cards {statement};\n")
    with pytest.raises(PipelineError, match="a rename would show") as caught:
        run(spark, captured, SINKS[0], *rules)
    assert what in caught.value.detail


def test_names_that_rules_give_and_later_rules_know() -> None:
    rules = [
        Rule(table="*.t", rename={"a": "b", "b": "a"}),
        Rule(table="*.t", exclude=["b"]),
        Rule(table="*.t", include=["a", "d"]),
    ]
    found = Hiding.of(compile_rules(rules, [], "public", "t"), ["a", "b", "c", "d"])
    assert found.hidden == {"a", "c"}
    assert found.known == {"a", "b", "c", "d"}
    assert not found.decisive
