"""``pgtide run``: capture and pipelines in one command."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from pgtide.cli.attached import command_line
from pgtide.cli.invocation import Invocation
from pgtide.cli.stopping import stop_on_signals
from pgtide.errors import ConfigError, TableParked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgtide.config import Config


def command(
    ctx: typer.Context,
    until_current: Annotated[
        bool,
        typer.Option(
            "--until-current", help="Stop when everything committed before now was applied."
        ),
    ] = False,
    pipeline: Annotated[
        list[str] | None,
        typer.Option("--pipeline", "-p", metavar="NAME", help="Only this one; repeatable."),
    ] = None,
) -> int:
    """Run capture and pipelines together.

    Capture is a process of its own, pipelines share one Spark session. What fails for a
    passing reason is started again. On an empty log the rows that are there already are read
    first, as pgtide snapshot does, unless source.snapshot says otherwise. A pipeline that fails
    for good stays down while the rest goes on, and the exit code at the end is 1; with
    --until-current also if tables are parked.
    What it says at the end is on stdout, with a pipeline into stdout on stderr.
    SIGINT or SIGTERM ends it cleanly, a second one at once. JSON, at the end: {"capture":
    {"gear", "position", "events", "commits", "lag_bytes", …}, "pipelines": {NAME: {"status":
    "current" | "stopped" | "failed" | …, "position", "rows", "batches", "withheld": {TABLE:
    events}, "skipped_writes": {TABLE: writes}, "last_batch": {"at", "rows", "seconds"} or
    null, "tables": {NAME: rows}, "parked": [{"table", "position", "since", "message", "detail",
    "hint"}], "error"}}}.

    \b
    Examples:
      pgtide run
      pgtide run --until-current --pipeline lake --json
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    names = chosen(config, pipeline or [])
    from pgtide.snapshot.need import snapshot_due

    started: list[SparkSession] = []
    try:
        if snapshot_due(config):
            started.append(spark_session(config, hears_signals=True))
            with beside_events(config, names):
                if not _take_snapshot(config, started[0], quiet=invocation.json):
                    return 0
        return _run(invocation, names, started, until_current=until_current)
    finally:
        for session in started:
            _stop(session)


def _stop(session: SparkSession) -> None:
    """End Spark. A Java that was killed cannot be told; what that did was said already."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        session.stop()


def _take_snapshot(config: Config, spark: SparkSession, *, quiet: bool) -> bool:
    """The rows that are there already, before anything else; False if a signal ended it."""
    from pgtide.cli import snapshot

    stop = threading.Event()
    stop_on_signals(stop.set)
    taken = snapshot.take(config, spark, None, stop, quiet=quiet)
    if taken.progress.stage != "done":
        return False
    if not quiet:
        snapshot.conclude(taken)
    return True


def _run(
    invocation: Invocation, names: list[str], started: list[SparkSession], *, until_current: bool
) -> int:
    """Capture and pipelines; ``started`` is the Spark session, if there is one yet."""
    from pgtide.cli.run_progress import RunReporter, summary
    from pgtide.pipeline.supervisor import Supervisor

    config = invocation.config

    def open_session() -> SparkSession:
        if not started:
            started.append(spark_session(config, hears_signals=True))
        return started[0]

    with RunReporter(config, quiet=invocation.json) as reporter:
        supervisor = Supervisor(
            config,
            names,
            command_line(invocation, until_current=until_current),
            open_session,
            until_current=until_current,
            tick=reporter,
        )
        stop_on_signals(supervisor.stop)
        supervisor.run()
    with beside_events(config, names):
        if invocation.json:
            print(json.dumps(summary(supervisor)))
        else:
            reporter.conclude(supervisor)
    if until_current and supervisor.parked and not supervisor.failed:
        raise parked_error(*(member.name for member in supervisor.parked))
    return 1 if supervisor.failed else 0


@contextmanager
def beside_events(config: Config, names: Sequence[str]) -> Iterator[None]:
    """What a command says about itself goes to stderr while stdout has a pipeline's events."""
    if any(config.pipelines[name].sink.type == "stdout" for name in names):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def chosen(config: Config, names: Sequence[str]) -> list[str]:
    """The pipelines that were named, or all."""
    if not config.pipelines:
        raise ConfigError(
            "no pipeline is configured",
            hint="Add one below pipelines:, or run capture alone: pgtide capture",
        )
    for name in names:
        known_pipeline(config, name)
    return list(dict.fromkeys(names)) or list(config.pipelines)


def known_pipeline(config: Config, name: str) -> None:
    """Refuse a name that the configuration does not have."""
    if name not in config.pipelines:
        from pgtide.config.model import is_pipeline_name

        shown = name if is_pipeline_name(name) else repr(name)
        known = ", ".join(config.pipelines) or "none"
        raise ConfigError(f"there is no pipeline {shown}", hint=f"The configuration has: {known}.")


def parked_error(*pipelines: str) -> TableParked:
    """What a command that should have brought all tables up to date ends with."""
    return TableParked(
        "tables are parked",
        detail=f"Some of {', '.join(pipelines)} failed and wait; all others are current.",
        hint="Run: pgtide status, put right what it says, then: "
        + " && ".join(f"pgtide resume --pipeline {name}" for name in pipelines),
    )


def spark_session(config: Config, *, hears_signals: bool = False) -> SparkSession:
    """The Spark session that the configuration describes.

    ``hears_signals``: whoever calls ends by ``stop_on_signals``. It is then started in a thread,
    for in the main one PySpark takes SIGINT for itself, and its handler fails while Spark starts.
    """
    from concurrent.futures import ThreadPoolExecutor

    from pgtide.spark.session import start

    settings = {**_object_stores(config), "spark.master": config.spark.master, **config.spark.conf}
    if not hears_signals:
        return start(settings)
    with ThreadPoolExecutor(1, "pgtide-spark") as threads:
        return threads.submit(start, settings).result()


def _object_stores(config: Config) -> dict[str, str]:
    """Settings for the buckets of the log and of lakes."""
    from pgtide.config.sinks import DeltaSettings
    from pgtide.spark.paths import object_store_settings

    sinks = [pipeline.sink for pipeline in config.pipelines.values()]
    lakes = [(sink.path, sink.storage) for sink in sinks if isinstance(sink, DeltaSettings)]
    settings: dict[str, str] = {}
    for path, storage in [(config.log.path, config.log.storage), *lakes]:
        wanted = object_store_settings(path, storage)
        if any(settings.get(name, value) != value for name, value in wanted.items()):
            raise ConfigError(
                "two paths in one bucket have different storage options",
                detail=f"Those of {path} are not those of another path; Spark knows a bucket once.",
                hint="Give the same storage to the log and all lakes of a bucket, or take another.",
            )
        settings |= wanted
    return settings
