"""Global options, errors and exit codes of the command line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from pgtide.cli import COMMANDS, load_command
from pgtide.cli import run_command as run
from pgtide.cli.invocation import Invocation
from pgtide.errors import ConfigError, EnvironmentMissing, SlotMissing

SECRET = "hunter2"

HELP_LIMIT_S = 0.4
HEAVY = (
    "pyarrow",
    "numba",
    "numpy",
    "psycopg",
    "deltalake",
    "pglast",
    "pydantic",
    "rich",
    "pyspark",
)


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Invocation], Any]], None]:
    """Put a function in the place of ``pgtide version``."""

    def replace(body: Callable[[Invocation], Any]) -> None:
        def command(ctx: typer.Context) -> Any:
            return body(ctx.ensure_object(Invocation))

        monkeypatch.setattr("pgtide.cli.version.command", command)

    return replace


def raising(error: BaseException) -> Callable[[Invocation], Any]:
    def body(_: Invocation) -> None:
        raise error

    return body


@pytest.mark.parametrize("arguments", [["--json", "version"], ["version", "--json"]])
def test_json_before_and_after_the_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out).keys() >= {"pgtide", "python", "deltalake"}


@pytest.mark.parametrize("order", ["before", "after"])
def test_config_option_names_the_file(order: str, becomes: Any, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("source: {url: host=db}\nlog: {path: /log, flush_interval: 2s}\n")
    seen: list[float] = []
    becomes(lambda invocation: seen.append(invocation.config.log.flush_interval))
    option = ["-c", str(file)]
    assert run([*option, "version"] if order == "before" else ["version", *option]) == 0
    assert seen == [2.0]


def test_default_config_file_or_environment(
    becomes: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    paths: list[str] = []
    becomes(lambda invocation: paths.append(invocation.config.log.path))
    assert run(["version"]) == 2
    assert "error: there is no configuration file pgtide.yaml" in capsys.readouterr().err
    monkeypatch.setenv("PGTIDE_SOURCE__URL", "host=db")
    monkeypatch.setenv("PGTIDE_LOG__PATH", "/from/env")
    assert run(["version"]) == 0
    Path("pgtide.yaml").write_text("log: {path: /from/file}")
    monkeypatch.delenv("PGTIDE_LOG__PATH")
    assert run(["version"]) == 0
    assert paths == ["/from/env", "/from/file"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("the fact", detail="The detail.", hint="pgtide check"), 2),
        (EnvironmentMissing("the fact", detail="The detail.", hint="pgtide check"), 3),
        (SlotMissing("the fact", detail="The detail.", hint="pgtide check"), 1),
    ],
)
def test_errors_are_fact_detail_and_hint(
    error: Exception, code: int, becomes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(raising(error))
    assert run(["version"]) == code
    printed = capsys.readouterr()
    assert printed.err == "error: the fact\nThe detail.\nhint: pgtide check\n"
    assert printed.out == ""

    assert run(["version", "--json"]) == code
    assert json.loads(capsys.readouterr().err) == {
        "error": {
            "type": type(error).__name__,
            "message": "the fact",
            "detail": "The detail.",
            "hint": "pgtide check",
            "exit_code": code,
        }
    }


def test_colour_only_on_a_terminal(
    becomes: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(raising(SlotMissing("slot [bold] gone", hint="pgtide init")))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert run(["version"]) == 1
    shown = capsys.readouterr().err
    assert "\x1b[" in shown
    assert "slot [bold] gone" in shown


def test_unexpected_errors_say_where_and_not_what(
    becomes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    becomes(raising(ValueError(f"row has {SECRET}")))
    assert run(["version"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: unexpected ValueError at ")
    assert SECRET not in shown
    assert "Traceback" not in shown

    assert run(["version", "--log-level", "debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_abort_and_exit_codes(becomes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    becomes(raising(KeyboardInterrupt()))
    assert run(["version"]) == 130
    becomes(raising(typer.Abort()))
    assert run(["version"]) == 1
    assert capsys.readouterr().err == "error: aborted\n"
    becomes(raising(typer.Exit(3)))
    assert run(["version"]) == 3
    becomes(lambda _: 1)
    assert run(["version"]) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["chek"], "Did you mean 'check'?"),
        (["version", "--jsn"], "--json"),
        (["version", "--log-level", "loud"], "--log-level"),
        (["version", "extra"], "extra"),
        (["--nothing"], "--nothing"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert text in shown
    assert run([*arguments, "--json"]) == 2
    assert text in json.loads(capsys.readouterr().err)["error"]["message"]


def test_log_lines_are_plain_and_on_stderr(
    becomes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(_: Invocation) -> None:
        logging.getLogger("pgtide.something").info("reading %s", "it")
        logging.getLogger("pgtide.something").debug("details")

    becomes(body)
    assert run(["version"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("INFO    reading it\n")
    assert printed.err.count("\n") == 1
    assert run(["--log-level", "error", "version"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["version", "--log-level", "debug"]) == 0
    assert "DEBUG   details" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    shown = capsys.readouterr().out
    for name, text in COMMANDS.items():
        assert f"  {name} " in shown
        assert text[:40] in shown  # a long one is cut to the width
    assert "completion" not in shown


def paths(name: str, command: Any) -> list[str]:
    children = getattr(command, "commands", {})
    below = (paths(f"{name} {child}", children[child]) for child in children)
    return [name, *(path for child in below for path in child)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths(name, load_command(name)):
        assert run([*path.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert "Example" in shown, path
        assert f"pgtide {path}" in shown.partition("Example")[2], path


@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_is_the_commands_own(name: str) -> None:
    loaded = load_command(name)
    assert loaded.help.splitlines()[0] == COMMANDS[name]


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from pgtide.cli import run_command as run; run(['--help']);"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", "from pgtide.cli import main; main()", "--help"],
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - started

    # The best of a few: the limit is about our imports, not about a busy machine.
    assert min(seconds() for _ in range(5)) < HELP_LIMIT_S


def test_python_m_pgtide() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgtide", "version", "--json"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pgtide" in json.loads(done.stdout)
    wrong = subprocess.run(
        [sys.executable, "-m", "pgtide", "nonsense"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "see pgtide --help" in wrong.stderr
