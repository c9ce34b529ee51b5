"""Names, sinks and places of pipelines, as the configuration takes or refuses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pgtide.config import Config, Pipeline, load
from pgtide.config.problems import explain
from pgtide.config.unbounded_numeric import parse_unbounded_numeric
from pgtide.errors import ConfigError

STDOUT: dict[str, Any] = {"type": "stdout"}
LAKE: dict[str, Any] = {"type": "delta", "path": "./lake"}
FILES: dict[str, Any] = {"type": "file", "path": "./files"}
PAST = {"type": "postgres", "url": "postgresql://db/past", "mode": "history"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "conf"


def loaded(directory: Path, sinks: dict[str, Any], log: str = "./log") -> Config:
    return load(written(directory, sinks, log), {})


def written(directory: Path, sinks: dict[str, Any], log: str = "./log") -> Path:
    document = {
        "source": {"url": "host=db"},
        "log": {"path": log},
        "pipelines": {name: {"sink": sink} for name, sink in sinks.items()},
    }
    directory.mkdir(exist_ok=True)
    file = directory / "pgtide.yaml"
    file.write_text(json.dumps(document))
    return file


def refused(directory: Path, sinks: dict[str, Any], log: str = "./log") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, sinks, log)
    return caught.value


@pytest.mark.parametrize("name", ["lake", "Lake_2", "a-b", "7", "a" * 80])
def test_names(directory: Path, name: str) -> None:
    assert list(loaded(directory, {name: STDOUT}).pipelines) == [name]


@pytest.mark.parametrize(
    "name", ["", " ", "../../evil", "a/b", "lake.parked", ".", "lake\n", "l\u0430ke", "ü", "a" * 81]
)
def test_names_that_are_no_file_names(directory: Path, name: str) -> None:
    error = refused(directory, {name: STDOUT})
    assert error.message == f"pipelines: {name!r} cannot be the name of a pipeline"
    assert "ASCII letters, digits, _ and -" in error.hint


def test_a_name_that_yaml_takes_for_something_else(directory: Path) -> None:
    file = written(directory, {"NUMBER": STDOUT})
    file.write_text(file.read_text().replace('"NUMBER"', "2024"))
    with pytest.raises(ConfigError, match="pipelines: 2024 cannot be the name of a pipe") as found:
        load(file, {})
    assert "in quotes" in found.value.hint


@pytest.mark.parametrize(
    ("sink", "message", "hint"),
    [
        (
            {"type": "kafka"},
            ".type: must be 'delta', 'file', 'stdout' or 'postgres'",
            "sink: {type: delta, p",
        ),
        (
            {"type": None},
            ".type: must be 'delta', 'file', 'stdout' or 'postgres'",
            "sink: {type: delta, p",
        ),
        (
            {"path": "x"},
            ".type: required, but not set",
            "must be 'delta', 'file', 'stdout' or 'postgres'",
        ),
        ("delta", ": expected a section of key: value", "sink: {type: delta, path:"),
        (
            None,
            ": expected a section of key: value",
            "type must be 'delta', 'file', 'stdout' or 'postgres'",
        ),
        ([LAKE], ": expected a section of key: value", "sink: {type: delta, path:"),
        ({**LAKE, "mod": "scd2"}, ".mod: unknown", "did you mean pipelines.lake.sink.mode?"),
        ({**LAKE, "mode": "x"}, ".mode: must be 'mirror', 'history', 'scd2' or 'pivot'", ""),
        ({"type": "delta"}, ".path: required, but not set", ""),
        ({**FILES, "pivot": {"keys": []}}, ".pivot.keys: unknown", "lake.sink.pivot.key?"),
        ({**FILES, "format": "csv", "envelope": "debezium"}, ": envelope debezium cannot", "jsonl"),
    ],
)
def test_wrong_sinks(directory: Path, sink: Any, message: str, hint: str) -> None:
    error = refused(directory, {"lake": sink})
    assert error.message.startswith(f"pipelines.lake.sink{message}")
    assert hint in error.hint
    assert ".delta" not in error.message + error.hint


@pytest.mark.parametrize(
    ("sink", "message", "hint"),
    [
        ({**LAKE, "mode": "history", "soft_delete": True}, "soft_delete", "mode to mirror"),
        ({**LAKE, "mode": "scd2", "committed_at": True}, "committed_at", "mode to mirror"),
        ({**LAKE, "mode": "pivot", "views": "shop"}, "views", "mode to mirror"),
        ({**LAKE, "pivot": {"key": ["id"]}}, "pivot", "mode to pivot"),
        ({**LAKE, "mode": "history", "pivot": {"fields": "all"}}, "pivot", "mode to pivot"),
        ({**FILES, "pivot": {"created": "at"}}, "pivot", "envelope to pivot"),
        ({**PAST, "ddl": ["table"]}, "ddl", "mode to mirror"),
        ({**PAST, "consistency": "table"}, "consistency", "mode to mirror"),
        ({**PAST, "on_conflict": "keep"}, "on_conflict", "mode to mirror"),
        ({**PAST, "keyless": "append"}, "keyless", "mode to mirror"),
        ({**PAST, "replication_role": "replica"}, "replication_role", "mode to mirror"),
    ],
)
def test_settings_without_effect(directory: Path, sink: Any, message: str, hint: str) -> None:
    error = refused(directory, {"lake": sink})
    assert error.message.startswith(f"pipelines.lake.sink: {message} has no effect with ")
    assert hint in error.hint


def test_settings_that_say_what_is_so_anyway(directory: Path) -> None:
    plain = {**LAKE, "mode": "history", "soft_delete": False, "views": None, "pivot": {}}
    assert loaded(directory, {"lake": plain}).pipelines["lake"].sink.type == "delta"


@pytest.mark.parametrize(
    ("log", "path", "relation"),
    [
        ("./log", "./log", "is"),
        ("./log", "log/../log/", "is"),
        ("./log", "./log/lake", "is inside"),
        ("./tide/log", "./tide", "is around"),
        ("./log", "..", "is around"),
        ("./log", "/", "is around"),
        ("./log", "file://{}/log/x", "is inside"),
        ("./my log", "file://{}/my%20log", "is"),
        ("./log", "./link", "is"),
        ("s3://bucket/log", "s3://bucket/log/", "is"),
        ("s3://bucket/log", "s3a://bucket/log/lake", "is inside"),
        ("s3://bucket/tide/log", "s3://bucket", "is around"),
    ],
)
@pytest.mark.parametrize("kind", ["delta", "file"])
def test_a_sink_keeps_out_of_the_log(
    directory: Path, log: str, path: str, relation: str, kind: str
) -> None:
    directory.mkdir()
    (directory / "link").symlink_to(directory / "log")
    error = refused(directory, {"lake": {"type": kind, "path": path.format(directory)}}, log)
    assert error.message == f"pipelines.lake.sink.path {relation} log.path"
    assert error.hint


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("./log", "./log2"),
        ("./log", "s3://bucket/log"),
        ("s3://bucket/log", "s3://bucket/log-lake"),
        ("s3://bucket/log", "s3://other/log"),
        ("s3://bucket/log", "gs://bucket/log"),
    ],
)
def test_a_sink_beside_the_log(directory: Path, log: str, path: str) -> None:
    assert loaded(directory, {"lake": {"type": "delta", "path": path}}, log)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (FILES, {**FILES, "path": "files/"}),
        (FILES, {**FILES, "path": "./files/more"}),
        ({**FILES, "path": "."}, FILES),
        (FILES, {**LAKE, "path": "files"}),
        ({**FILES, "path": "s3://bucket/a"}, {**FILES, "path": "s3a://bucket/a/"}),
    ],
)
def test_files_have_their_path_alone(directory: Path, one: Any, two: Any) -> None:
    error = refused(directory, {"one": one, "two": two}, "/log")
    assert error.message.startswith("pipelines.two.sink.path ")
    assert error.message.endswith(" pipelines.one.sink.path")


@pytest.mark.parametrize(
    ("one", "two", "relation"),
    [
        (LAKE, {**LAKE, "mode": "history"}, "is"),
        (LAKE, {**LAKE, "path": "lake/history"}, "is inside"),
        ({**LAKE, "path": "s3://bucket/a/b"}, {**LAKE, "path": "s3a://bucket/a"}, "is around"),
    ],
)
def test_a_lake_has_one_pipeline(directory: Path, one: Any, two: Any, relation: str) -> None:
    error = refused(directory, {"one": one, "two": two})
    assert error.message == f"pipelines.two.sink.path {relation} pipelines.one.sink.path"
    assert "take each other's tables" in error.detail


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ({**FILES, "keep": "0s"}, ".keep: must be longer than nothing"),
        ({**LAKE, "views": "a.b"}, ".views: 'a.b' is not a plain name"),
        ({**LAKE, "views": ""}, ".views: '' is not a plain name"),
        ({**LAKE, "views": "a b`"}, ".views: 'a b`' is not a plain name"),
    ],
)
def test_values_that_mean_nothing(directory: Path, sink: Any, message: str) -> None:
    error = refused(directory, {"lake": sink})
    assert error.message == f"pipelines.lake.sink{message}"
    assert error.hint


@pytest.mark.parametrize("value", [[None, 1], {"a": 1}, [[1]]])
def test_a_value_that_is_none(value: Any) -> None:
    rule = {"table": "t", "filter": {"column": "a", "operator": "in", "value": value}}
    settings = {"sink": STDOUT, "rules": [rule]}
    with pytest.raises(ValidationError) as caught:
        Pipeline.model_validate(settings)
    error = explain(caught.value, "pgtide.yaml", Pipeline)
    assert error.message == "rules[0].filter.value: null, lists and sections are no values"
    assert "is_null" in error.hint


def test_paths_that_sinks_may_share(directory: Path) -> None:
    """A lake may be below a directory of files."""
    below = {**LAKE, "path": "./files/lake"}
    sinks = {"a": LAKE, "c": below, "d": FILES, "e": STDOUT, "f": STDOUT}
    assert list(loaded(directory, sinks).pipelines) == [*sinks]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("string", "string"),
        (" String ", "string"),
        ("decimal(38,10)", "decimal(38,10)"),
        ("DECIMAL ( 1 , 0 )", "decimal(1,0)"),
        ("decimal(038,038)", "decimal(38,38)"),
    ],
)
def test_unbounded_numeric(given: str, taken: str) -> None:
    found = Pipeline.model_validate({"sink": STDOUT, "unbounded_numeric": given})
    assert found.unbounded_numeric == taken
    assert Pipeline.model_validate({"sink": STDOUT}).unbounded_numeric == "string"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("double", "neither string nor a decimal"),
        ("decimal", "neither string nor a decimal"),
        ("decimal(10)", "neither string nor a decimal"),
        ("decimal(10,-1)", "neither string nor a decimal"),
        (38, "neither string nor a decimal"),
        ({"precision": 38}, "neither string nor a decimal"),
        ("decimal(0,0)", "cannot have 0 digits"),
        ("decimal(39,0)", "cannot have 39 digits"),
        ("decimal(5,6)", "Of 5 digits 6 cannot be behind the point"),
    ],
)
def test_types_that_unbounded_numeric_cannot_have(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match="unbounded_numeric cannot be") as found:
        parse_unbounded_numeric(given)
    assert reason in found.value.detail
    assert "decimal(38,10)" in found.value.hint
    with pytest.raises(ValidationError, match="unbounded_numeric cannot be"):
        Pipeline.model_validate({"sink": STDOUT, "unbounded_numeric": given})
