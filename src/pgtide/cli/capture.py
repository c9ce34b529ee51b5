"""``pgtide capture``: the long-running process that owns the slot."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.snapshot import ATTACHED
from pgtide.cli.stopping import stop_on_signals

if TYPE_CHECKING:
    from pgtide.capture.progress import Progress

logger = logging.getLogger("pgtide.capture")

LINE_INTERVAL_S = 10.0


def command(
    ctx: typer.Context,
    until_current: Annotated[
        bool,
        typer.Option(
            "--until-current", help="Stop when everything committed before now is in the log."
        ),
    ] = False,
) -> int:
    """Stream changes from the source into the log.

    Runs until SIGINT or SIGTERM, flushes what is complete, and confirms to the
    server only what is durable. Starting it again goes on exactly there. On an
    empty log it runs pgtide snapshot first, unless source.snapshot says otherwise.

    \b
    Examples:
      pgtide capture
      pgtide capture --until-current --json
    """
    # Everything heavy is imported here: numba, pyarrow and deltalake take most of a second.
    from pgtide.capture.engine import Capture
    from pgtide.snapshot.need import snapshot_due

    invocation = ctx.ensure_object(Invocation)
    if snapshot_due(invocation.config):
        logger.info("the log is empty: pgtide snapshot first, with Spark, in a process of its own")
        if code := _take_snapshot(invocation):
            return code
    reporter = _Reporter(quiet=invocation.json)
    capture = Capture(invocation.config, on_progress=reporter)
    stop_on_signals(capture.stop)
    if invocation.config.source.snapshot == "incremental":
        logger.info("rows from before the slot was made are not part of the log yet")
    with reporter:
        capture.run(until_current=until_current)
    if invocation.json:
        print(json.dumps(_summary(capture.progress)))
    else:
        progress = capture.progress
        print(f"captured {progress.events} events, the log is at {progress.position}")
    return 0


def _take_snapshot(invocation: Invocation) -> int:
    """Run ``pgtide snapshot``; its exit code. Java is gone when it ends."""
    command = [sys.executable, "-m", "pgtide", "--log-level", invocation.log_level]
    if invocation.config_path is not None:
        command += ["--config", str(invocation.config_path)]
    # It ends with us: our end of its stdin closes. Its last word is none of our results.
    with subprocess.Popen(
        [*command, "snapshot"],
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        env={**os.environ, ATTACHED: "1"},
    ) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: process.terminate())
        return process.wait()


def _summary(progress: Progress) -> dict[str, Any]:
    return {
        **asdict(progress),
        "position": str(progress.position),
        "server": str(progress.server),
        "lag_bytes": progress.lag_bytes,
    }


class _Reporter:
    """A live line on a terminal, plain lines elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._status: Any = None
        self._said_at = 0.0
        self._events = 0
        self._since = time.monotonic()
        self._rate = 0.0

    def __enter__(self) -> None:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        interval = 0.5 if self._status is not None else LINE_INTERVAL_S
        if self._quiet or now - self._said_at < interval:
            return
        self._said_at = now
        elapsed = now - self._since
        if elapsed > 0:
            self._rate = (progress.events - self._events) / elapsed
            self._events, self._since = progress.events, now
        line = (
            f"{progress.gear}: {progress.events} events, {self._rate:.0f}/s, "
            f"at {progress.position}, {progress.lag_bytes / 1e6:.1f} MB behind"
        )
        if self._status is not None:
            self._status.update(line)
        else:
            logger.info(line)
