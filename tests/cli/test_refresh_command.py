"""``pgtide refresh``: asking, listing and steering, and the same from Python."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pgtide
from pgtide.cli import run_command as run
from pgtide.config import Config
from pgtide.errors import ConfigError, TransientError
from pgtide.log.refreshes import RefreshStore
from pgtide.log.storage import Storage
from tests.fixtures.capture import Captured, MakeCaptured
from tests.fixtures.databases import Database


@pytest.fixture
def filled(database: Database, make_captured: MakeCaptured) -> Captured:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE named (name text, n int, PRIMARY KEY (name, n))")
    database.execute("CREATE TABLE k (v text); ALTER TABLE k REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 300) i")
    return make_captured()


@pytest.fixture
def call(filled: Captured, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    path = filled.directory / "pgtide.yaml"
    path.write_text(json.dumps(filled.settings))

    def run_command(*arguments: str) -> tuple[int, str]:
        code = run(["-c", str(path), *arguments])
        said = capsys.readouterr()
        return code, said.out if "--json" in arguments else said.out + said.err

    return run_command


def test_the_running_capture_does_it(filled: Captured, call: Callable[..., Any]) -> None:
    with filled.capturing():
        code, said = call("refresh", "public.t", "--json")
    told = json.loads(said)
    assert (code, told["state"], told["rows"]) == (0, "done", 300)
    assert len(filled.events("read")) == 300


def test_without_a_capture_the_next_one_does_it(
    filled: Captured, call: Callable[..., Any], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("1\n 0299\n\n1\n999\n")
    code, said = call("refresh", "public.t", "--keys", str(keys))
    assert code == 0
    assert "the next capture does it" in said
    filled.capture()
    code, said = call("refresh", "--list", "--json")
    (told,) = json.loads(said)
    assert (told["state"], told["rows"], told["reason"]) == ("done", 2, "asked")


@pytest.mark.parametrize(
    ("limit", "asked"),
    [
        (["--range", "10..19"], {"low": "10", "high": "19", "replace": True}),
        (["--range", "290.."], {"low": "290", "high": None, "replace": True}),
        (["--range", "..5"], {"low": None, "high": "5", "replace": True}),
        ([], {"low": None, "high": None, "where": None, "replace": True}),
    ],
)
def test_what_is_asked_for(
    filled: Captured, call: Callable[..., Any], limit: list[str], asked: dict[str, Any]
) -> None:
    settings = ["--replace", "--chunk-rows", "7", "--max-rate", "900", "--no-wait"]
    assert call("refresh", "public.t", *limit, *settings)[0] == 0
    (made,) = RefreshStore(Storage(filled.config.log.path)).requests()
    assert asked.items() <= dataclasses.asdict(made).items()
    assert (made.chunk_rows, made.max_rate) == (7, 900)


def test_names_that_are_swapped_before_it_is_done(
    filled: Captured, call: Callable[..., Any]
) -> None:
    """Whoever asks means the table that has the name then."""
    filled.execute("CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'other')")
    filled.capture()
    call("refresh", "public.t", "--no-wait")
    for old, new in (("t", "aside"), ("u", "t"), ("aside", "u")):
        filled.execute(f"ALTER TABLE {old} RENAME TO {new}")
    filled.capture()
    found = filled.events("read")
    assert {event.table for event in found} == {"u"}
    assert len(found) == 300


def test_keys_that_hold_what_ends_lines_elsewhere(
    filled: Captured, call: Callable[..., Any], tmp_path: Path
) -> None:
    name = "a\u2028b\x0cc\x85d\re"
    filled.execute("INSERT INTO named VALUES (%s, 1), ('a', 1), ('b', 1)", [name])
    keys = tmp_path / "keys"
    # As other systems write files: with a mark at the beginning, and lines that end otherwise.
    keys.write_bytes(f"\ufeffb\t1\r\n{name}\t1\r\n\r\n".encode())
    assert call("refresh", "public.named", "--keys", str(keys))[0] == 0
    filled.capture()
    assert [(event.after or {})["name"] for event in filled.events("read")] == [name, "b"]


def test_steering(filled: Captured, call: Callable[..., Any]) -> None:
    call("refresh", "public.t", "--no-wait")
    (told,) = json.loads(call("refresh", "--list", "--json")[1])
    assert call("refresh", "--pause", told["id"])[0] == 0
    filled.capture()
    assert "paused" in call("refresh", "--list")[1]
    assert "paused" in call("status")[1]
    assert call("refresh", "--resume", told["id"])[0] == 0
    filled.capture()
    assert "done, 300" in call("refresh", "--list")[1]
    code, said = call("refresh", "--resume", told["id"])
    assert (code, "is done already" in said) == (2, True)
    call("refresh", "public.t", "--no-wait")
    told = json.loads(call("refresh", "--list", "--json")[1])[1]
    assert call("refresh", "--cancel", told["id"])[0] == 0
    filled.capture()
    assert "cancelled" in call("refresh", "--list")[1]
    assert call("refresh", "--pause", "nonsense")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["public.nowhere"], "there is no table public.nowhere"),
        (["public.k"], "has no key"),
        (["public.t", "--where", "nonsense >"], "syntax error"),
        (["public.t", "--where", "nonsense > 1"], 'column "nonsense" does not exist'),
        (["public.t", "--where", "true", "--range", "1..2"], "takes one of"),
        (["public.t", "--where", "true", "--replace"], "cannot say which rows are gone"),
        (["public.t", "--range", "12"], "is not a range"),
        (["public.t", "--keys", "/nowhere"], "cannot be read"),
        (["public.named", "--range", "a..b", "--replace"], "cannot be replaced"),
        (["public.t", "--range", "a..5"], "the low end of the range is not what"),
        ([], "say one of"),
        (["public.t", "--list"], "say one of"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(
    call: Callable[..., Any], arguments: list[str], said: str
) -> None:
    code, told = call("refresh", *arguments)
    assert code in (1, 2)
    assert said in told
    assert json.loads(call("refresh", "--list", "--json")[1]) == []


def test_a_failed_refresh_shows_until_it_is_cancelled(
    filled: Captured, call: Callable[..., Any]
) -> None:
    call("refresh", "public.t", "--no-wait")
    filled.execute("DROP TABLE t")
    filled.capture()
    (told,) = json.loads(call("refresh", "--list", "--json")[1])
    assert told["state"] == "failed"
    code, said = call("status")
    assert (code, "there is no table" in said) == (1, True)
    call("refresh", "--cancel", told["id"])
    assert "refresh" not in call("status")[1]


def test_a_select_from_python(filled: Captured) -> None:
    syncer = pgtide.Syncer(filled.config)
    with filled.capturing():
        standing = syncer.refresh("SELECT * FROM public.t WHERE id BETWEEN 10 AND 12 OR id = 20")
    assert (standing.state, standing.rows) == ("done", 4)


def test_a_refresh_of_a_pipeline(filled: Captured, tmp_path: Path) -> None:
    """It has ended when the target has the rows; other pipelines' tables are refused."""
    sink = {"type": "file", "path": str(tmp_path / "out")}
    pipelines = {"files": {"sink": sink, "tables": ["public.t"]}}
    config = Config.model_validate({**filled.settings, "pipelines": pipelines})
    pipeline = pgtide.Pipeline(config, "files")
    for other in ("public.named", "t"):
        with pytest.raises(ConfigError, match="does not take"):
            pipeline.refresh(other)
    with filled.capturing(), pytest.raises(TransientError, match="not applied"):
        pipeline.refresh("public.t", keys=[["7"], ["8"]], timeout_s=4)
    assert [(event.after or {})["id"] for event in filled.events("read")] == ["7", "8"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t",
        "SELECT * FROM public.t, public.k",
        "SELECT * FROM public.t LIMIT 1",
        "SELECT count(*) FROM public.t",
        "SELECT * INTO public.u FROM public.t",
        "SELECT * FROM public.t FOR UPDATE",
        "SELECT * FROM public.t AS x WHERE x.id = 1",
        "SELECT * FROM public.t; SELECT 1",
        "DELETE FROM public.t",
        "nonsense",
    ],
)
def test_what_is_no_selection_of_rows(filled: Captured, query: str) -> None:
    with pytest.raises(ConfigError, match="does not select rows of one table"):
        pgtide.Syncer(filled.config).refresh(query, wait=False)
