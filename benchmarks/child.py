"""Programs that the benchmarks start: pgtide itself, measuring children, Postgres tools.

Children get the environment of a user: byte code caches are written, and neither PG* nor
PGTIDE_* variables of the caller reach them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PGTIDE = Path(sys.prefix) / "bin" / "pgtide"


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that ran to its end: wall-clock and CPU seconds."""

    seconds: float
    cpu_s: float


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "PGTIDE_")) and name != "PYTHONDONTWRITEBYTECODE"
    }


def timed(command: list[str | Path]) -> Finished:
    """Run a program and measure it from the outside; its output is shown only if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment()
    )
    return wait(process, began)


def wait(process: subprocess.Popen[Any], began: float = 0.0) -> Finished:
    """Wait for a program; its CPU seconds, and the seconds since ``began``."""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        program: Any = process.args
        raise SystemExit(f"{Path(program[0]).name} ended with exit code {process.returncode}")
    return Finished(seconds, usage.ru_utime + usage.ru_stime)


def start(module: str, *arguments: str, answered: bool = False) -> subprocess.Popen[str]:
    """Start a module of the benchmarks in a process of its own; stdout is a pipe.

    ``answered``: so is stdin, for a child that waits for its turn.
    """
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE if answered else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def expect(process: subprocess.Popen[str], word: str) -> None:
    """Pass the child's progress lines on until it says a word."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
        print(line.rstrip("\n"), flush=True)
    raise SystemExit(f"a child ended with exit code {process.wait()}")


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Pass the child's progress lines on, and return its last line, a JSON object."""
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        if last:
            print(last, flush=True)
        last = line.rstrip("\n")
    if process.wait():
        raise SystemExit(f"{last}\na child ended with exit code {process.returncode}")
    document: dict[str, Any] = json.loads(last)
    return document


def pgtide(config: Path, *arguments: str) -> None:
    """Run a pgtide command to its end."""
    timed([PGTIDE, "-c", config, "--log-level", "warning", *arguments])
