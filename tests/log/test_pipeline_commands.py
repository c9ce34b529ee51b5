"""Pipelines in ``pgtide status``, ``pgtide resume``, and readers of the log: no Spark in any."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pgtide.cli import run_command as run
from pgtide.cli import run_progress
from pgtide.cli.run_progress import RunReporter, summary
from pgtide.config import Config
from pgtide.errors import PipelineError, TargetError, TargetUnavailable
from pgtide.log.readers import list_readers
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.parking import register
from pgtide.pipeline.state import Parked, State
from pgtide.pipeline.state_file import StateFile
from pgtide.pipeline.supervisor import Supervisor
from pgtide.position import Lsn, Position

HINT = "Set on_unrepresentable."


@pytest.fixture(autouse=True)
def short_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgtide.cli.status_facts.SAMPLE_SECONDS", 0.0)


@pytest.fixture
def call(
    small_log: Any, database: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    path = tmp_path / "pgtide.yaml"
    document = {
        "source": {"url": database.url, "slot": database.name},
        "log": {"path": small_log.path},
        "pipelines": {name: {"sink": {"type": "stdout"}} for name in ("lake", "pond")},
    }
    path.write_text(json.dumps(document))
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])

    def run_command(*arguments: str) -> Any:
        code = run(["-c", str(path), *arguments])
        said = capsys.readouterr()
        return code, json.loads(said.out) if "--json" in arguments else said.out + said.err

    return run_command


def save(log: Any, name: str, lsn: int, **fields: Any) -> State:
    state = State.new(0, Position(Lsn(lsn), 1), [])
    for field, value in fields.items():
        setattr(state, field, value)
    StateFile(log.storage, name).save(state)
    register(log.storage, name, state, 0)
    return state


def test_status_shows_pipelines(call: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 1000}, {"lsn": 2000}])
    minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    repeated = {"public.t": 2, "public.u": 1}
    facts = {"committed_at": minute_ago, "batch_at": minute_ago, "skipped_writes": repeated}
    save(small_log, "lake", 1000, batch_rows=7, **facts)
    save(small_log, "gone", 2000, withheld={"public.t": 2, "public.u": 3})
    code, facts = call("status", "--json")
    assert code == 0
    lake, pond, gone = facts["pipelines"]
    assert (lake["name"], lake["running"], lake["position"]) == ("lake", False, "0/3E8:1")
    assert lake["lag_bytes"] > 0
    assert 55 < lake["lag_seconds"] < 120
    assert lake["last_batch"]["rows"] == 7
    assert (pond["position"], pond["lag_bytes"], pond["last_batch"]) == (None, None, None)
    assert gone["withheld"] == {"public.t": 2, "public.u": 3}
    assert [one["skipped_writes"] for one in (lake, pond, gone)] == [repeated, {}, {}]
    assert (gone["configured"], gone["lag_bytes"], gone["lag_seconds"]) == (False, 0, 0)
    with Lease(small_log.storage, "lake"):
        text = call("status")[1]
    assert "✓ pipeline lake: running, at 0/3E8:1, " in text
    assert "pipeline pond: never ran" in text
    assert text.count("repeated writes: 3, skipped") == text.count("repeated writes") == 1
    assert "pgtide log forget pipeline.gone" in text


def test_parked_tables_are_shown_and_asked_for(call: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 2000}])
    assert "has no parked tables" in call("resume", "--pipeline", "lake")[1]
    parked = Parked(Position(Lsn(500)), "a value does not fit", "", HINT, datetime.now(UTC))
    save(small_log, "lake", 2000, parked={"public.t": parked, "public.u": parked})
    code, facts = call("status", "--json")
    assert (code, facts["ok"]) == (1, False)
    assert facts["pipelines"][0]["parked"][0]["position"] == "0/1F4:0"
    code, text = call("status")
    assert "✗ pipeline lake parked public.t at 0/1F4:0: a value does not fit" in text
    assert HINT in text
    assert "pgtide resume --pipeline lake --table public.u" in text

    assert call("resume", "--pipeline", "lake", "--table", "public.v")[0] == 2
    assert call("resume", "--pipeline", "sea")[0] == 2
    code, said = call("resume", "--pipeline", "lake", "--table", "public.t", "--json")
    assert (code, said["tables"], said["running"]) == (0, ["public.t"], False)
    assert "public.t, public.u, when it starts" in call("resume", "--pipeline", "lake")[1]
    requests = StateFile(small_log.storage, "lake").requests()
    assert {request.table for request in requests} == {"public.t", None}


def test_a_failure_is_shown_until_it_is_over(call: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 2000}])
    save(small_log, "lake", 2000)
    file = StateFile(small_log.storage, "lake")
    file.note_error(TargetUnavailable("somebody else wrote", hint="only pgtide may"))
    code, text = call("status")
    assert code == 1
    assert "! pipeline lake failed at" in text
    assert "only pgtide may" in text
    file.clear_error()
    assert call("status")[0] == 0


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state: b"{",
        lambda state: b"\xff",
        lambda state: b"[]",
        lambda state: state.replace(b'"parked": {}', b'"parked": null'),
        lambda state: state.replace(b'"withheld": {}', b'"withheld": null'),
        lambda state: state.replace(b'"rows": 0', b'"rows": "many"'),
        lambda state: state.replace(b'"position": "0/7D0:1"', b'"position": "here"'),
        lambda state: state.replace(b'"position": "0/7D0:1"', b'"position": 7'),
        lambda state: state.replace(b'"rows"', b'"columns"'),
    ],
)
def test_a_state_that_cannot_be_understood(
    call: Any, small_log: Any, break_it: Callable[[bytes], bytes]
) -> None:
    """The other pipelines are shown all the same."""
    small_log.append([{"lsn": 2000}])
    for name in ("lake", "pond", "gone"):
        save(small_log, name, 2000)
    for name in ("lake", "gone"):
        path = f"pipelines/{name}/state.json"
        broken = break_it(small_log.storage.read(path))
        assert broken != small_log.storage.read(path)
        small_log.storage.replace(path, broken)
    code, facts = call("status", "--json")
    assert (code, facts["ok"]) == (1, False)
    lake, pond, gone = facts["pipelines"]
    assert lake["error"]["message"] == "the pipeline's state cannot be understood"
    assert "pipelines/lake/state.json" in lake["error"]["detail"]
    assert lake["error"]["hint"].endswith("start over: pgtide replay --pipeline lake")
    assert (lake["position"], lake["rows"], lake["parked"]) == (None, None, [])
    assert (pond["position"], pond["error"]) == ("0/7D0:1", None)
    assert (gone["configured"], gone["error"]["type"]) == (False, "PipelineError")
    code, text = call("status")
    assert code == 1
    assert "✗ pipeline lake: the pipeline's state cannot be understood\n" in text
    assert "    Restore it, or start over: pgtide replay --pipeline lake\n" in text
    assert "pipeline lake: never ran" not in text
    assert "pipeline pond: not running, at 0/7D0:1" in text
    assert "! pipeline gone: no longer in the configuration, and its state cannot be read" in text
    code, text = call("resume", "--pipeline", "lake")
    assert code == 1
    assert "pgtide replay --pipeline lake" in text


def test_a_state_that_cannot_be_read(call: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 2000}])
    save(small_log, "pond", 2000)
    for name in ("lake", "gone"):
        (Path(small_log.path) / "pipelines" / name / "state.json").mkdir(parents=True)
    code, facts = call("status", "--json")
    lake, pond, gone = facts["pipelines"]
    assert (code, lake["error"]["type"], pond["error"]) == (1, "LogUnavailable", None)
    assert gone["name"] == "gone"
    assert call("status")[0] == 1


@pytest.mark.parametrize("content", [b"{", b"\xff", b"null", b"[]", b'{"message": "no more"}'])
def test_an_error_that_cannot_be_understood(call: Any, small_log: Any, content: bytes) -> None:
    small_log.append([{"lsn": 2000}])
    save(small_log, "lake", 2000)
    small_log.storage.replace("pipelines/lake/error.json", content)
    code, facts = call("status", "--json")
    lake = facts["pipelines"][0]
    assert (code, lake["position"], lake["last_error"]) == (1, "0/7D0:1", None)
    assert lake["error"]["message"] == "the pipeline's last error cannot be understood"
    code, text = call("status")
    assert code == 1
    assert "pipeline lake: not running, at 0/7D0:1" in text
    assert "✗ pipeline lake: the pipeline's last error cannot be understood" in text
    assert "pgtide run --pipeline lake" in text


@pytest.mark.parametrize("content", [b"{", b"null", b'{"pid": 1}'])
def test_notes_that_cannot_be_understood(call: Any, small_log: Any, content: bytes) -> None:
    """One of capture, and one that asks for tables to be resumed."""
    small_log.storage.replace("capture.json", content)
    code, text = call("status")
    assert (code, "capture.json in the log" in text, "Traceback" in text) == (1, True, False)
    small_log.storage.replace("pipelines/lake/resume/1.json", content)
    with pytest.raises(PipelineError, match="cannot be understood") as refused:
        StateFile(small_log.storage, "lake").requests()
    assert refused.value.hint.startswith("Delete it, then run: pgtide resume --pipeline lake")


@pytest.mark.parametrize("name", ["../../evil", "", "a/b"])
@pytest.mark.parametrize("command", ["run", "resume", "replay"])
def test_names_that_no_pipeline_has(call: Any, small_log: Any, command: str, name: str) -> None:
    before = sorted(Path(small_log.path).parent.rglob("*"))
    code, text = call(command, "--pipeline", name)
    assert code == 2
    assert f"there is no pipeline {name!r}" in text
    assert "The configuration has: lake, pond." in text
    assert sorted(Path(small_log.path).parent.rglob("*")) == before


def test_a_reader_is_forgotten(call: Any, small_log: Any) -> None:
    small_log.append([{"lsn": 2000}])
    parked = Parked(Position(Lsn(500)), "message", "", "", datetime.now(UTC))
    save(small_log, "lake", 2000, parked={"public.t": parked})
    save(small_log, "gone", 1000)
    _, readers = call("log", "readers", "--json")
    assert {r["name"]: r["position"] for r in readers} == {
        "pipeline.gone": "0/3E8:1",
        "pipeline.lake": "0/7D0:1",
        "pipeline.lake.parked": "0/1F4:0",
    }
    assert "pipeline.gone  at 0/3E8:1" in call("log", "readers")[1]
    assert call("log", "forget", "pipeline.sea")[0] == 2
    assert call("log", "forget", "pipeline.gone") == (0, "forgot pipeline.gone\n")
    assert call("log", "forget", "pipeline.lake", "--json")[1] == {
        "forgotten": ["pipeline.lake", "pipeline.lake.parked"]
    }
    assert list_readers(small_log.storage) == []


def test_what_a_run_says_of_itself(
    small_log: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small_log.append([{"lsn": 1000}, {"lsn": 5000}])
    pipelines = {name: {"sink": {"type": "stdout"}} for name in ("lake", "pond")}
    config = Config.model_validate(
        {"source": {"url": "host=db"}, "log": {"path": small_log.path}, "pipelines": pipelines}
    )
    supervisor = Supervisor(config, list(pipelines), [], lambda: pytest.fail("no Spark"))
    lake, pond = supervisor.members.values()
    parked = Parked(Position(Lsn(500)), "a value does not fit", "", HINT, datetime.now(UTC))
    lake.status, lake.state = "running", State.new(0, Position(Lsn(1000), 1), [])
    lake.state.table_rows, lake.state.parked = {"public.t": 7}, {"public.u": parked}
    pond.status, pond.error = "failed", TargetError("it is not what it was", hint="look at it")
    supervisor.capture.progress = {
        "gear": "live",
        "events": 12,
        "position": "0/7D0",
        "lag_bytes": 2_000_000,
        "events_per_second": 3.4,
    }
    monkeypatch.setattr(run_progress, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(logging.getLogger("pgtide"), "propagate", True)
    with caplog.at_level("INFO"), RunReporter(config, quiet=False) as reporter:
        reporter(supervisor)
    assert "capture live, 3/s, 2.0 MB behind; lake running, 0/s, 4.0 kB behind" in caplog.text
    assert "1 tables parked; pond failed, 0/s" in caplog.text
    lake.state.rows = 1_000_000
    with caplog.at_level("INFO"):
        reporter(supervisor)
    rates = re.findall(r"lake running, (\d+)/s", caplog.text)
    assert rates[0] == "0"
    assert int(rates[1]) > 0

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(run_progress, "TABLE_INTERVAL_S", 0.0)
    capsys.readouterr()
    with RunReporter(config, quiet=False) as reporter:
        reporter(supervisor)
    shown = capsys.readouterr().err
    assert "public.t 7" in shown
    assert "running (1 parked)" in shown

    reporter.conclude(supervisor)
    said = capsys.readouterr().out
    assert "✗ lake parked public.u: a value does not fit" in said
    assert "✗ pond failed: it is not what it was" in said
    facts = summary(supervisor)["pipelines"]
    assert facts["lake"]["parked"][0]["table"] == "public.u"
    assert facts["pond"]["error"]["type"] == "TargetError"
