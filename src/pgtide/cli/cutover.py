"""``pgtide cutover``: whether a Postgres target can take over from the source."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.run import known_pipeline, spark_session
from pgtide.cli.stopping import stop_on_signals
from pgtide.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from pgtide.config import Config
    from pgtide.cutover.outcome import Outcome, Settings
    from pgtide.postgres.verdict import Check


def command(
    ctx: typer.Context,
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", metavar="NAME", help="Which one, if there are several."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="First make the source read-only.")
    ] = False,
    until_quiet: Annotated[
        str | None,
        typer.Option(
            "--until-quiet",
            metavar="DURATION",
            help="First wait until nobody has changed the tables for so long.",
        ),
    ] = None,
    wait: Annotated[
        str,
        typer.Option("--wait", metavar="DURATION", help="How long each wait may take."),
    ] = "5m",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare source and target.")
    ] = True,
    sequences_only: Annotated[
        bool, typer.Option("--sequences-only", help="Only copy the values of sequences.")
    ] = False,
) -> int:
    """Check that a Postgres target can take over from the source.

    Waits until the target has everything that was committed, copies the values of sequences,
    checks that nothing waits to be made or read again and no table is parked, verifies, and sees
    whether somebody wrote meanwhile. With --until-quiet it begins when the application was stopped.
    With --read-only the source is made read-only for new sessions first, and those that are there
    are ended; when the target is not ready that is taken back, otherwise it stays and the verdict
    says how to undo it, as it does of a source that was read-only before. Capture and pipeline may
    run, or are run here. Exits with 1 when the target is not ready; a warning (!) does not count.
    JSON: {"ready": bool, "pipeline", "position", "undo": SQL or null, "checks": [{"name", "level":
    "ok" | "warn" | "fail", "message", "hint"}], "sequences": {"set", "equal", "missing",
    "ahead", "unreadable": [name]}, "verification": as of pgtide verify, or null}.

    \b
    Examples:
      pgtide cutover --pipeline replica
      pgtide cutover --pipeline replica --until-quiet 10s --wait 30m
      pgtide cutover --pipeline replica --read-only --wait 10m
      pgtide cutover --sequences-only
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    name = _one(config, pipeline)
    from pgtide.config.units import parse_duration

    wait_s = parse_duration(wait)
    quiet_s = None if until_quiet is None else parse_duration(until_quiet)
    if sequences_only:
        return _sequences(invocation, config, name)
    from pgtide.cutover.outcome import Settings, document

    stop = threading.Event()
    settings = Settings(
        read_only=read_only, verify=verify, wait_s=wait_s, quiet_s=quiet_s, stop=stop
    )
    outcome = _cut_over(invocation, name, settings)
    if invocation.json:
        print(json.dumps(document(outcome), ensure_ascii=False))
    else:
        _conclude(config, outcome)
    if outcome.ready:
        return 0
    return Interrupted.exit_code if stop.is_set() else 1


def _cut_over(invocation: Invocation, name: str, asked: Settings) -> Outcome:
    from pgtide.cli.verify_progress import VerifyReporter
    from pgtide.cutover.cutting_over import Cutover

    config = invocation.config
    stop_on_signals(asked.stop.set)
    spark = spark_session(config, hears_signals=True)  # before anybody has to wait for it
    try:
        with VerifyReporter(quiet=invocation.json) as reporter:
            settings = replace(
                asked,
                on_check=None if invocation.json else _print_check,
                on_progress=reporter.telling_of(name),
            )
            return Cutover(spark, config, name, settings).run()
    finally:
        spark.stop()


def _sequences(invocation: Invocation, config: Config, name: str) -> int:
    from pgtide.config import TablePatterns
    from pgtide.cutover.read_only import NAME
    from pgtide.cutover.schema_checks import sequence_check
    from pgtide.postgres.connection import connect
    from pgtide.sinks.postgres.reaching import connect_target
    from pgtide.sinks.postgres.sequences import copy_sequences, sequences_of

    patterns = [TablePatterns(p) for p in (config.source.tables, config.pipelines[name].tables)]
    with (
        connect(config.source.url.reveal(), application_name=NAME) as source,
        connect_target(config, name, application_name=NAME) as target,
    ):
        copied = copy_sequences(source, target, sequences_of(source, patterns))
    if invocation.json:
        print(json.dumps({"pipeline": name, **vars(copied)}, ensure_ascii=False))
    else:
        _print_check(sequence_check(copied))
    return 0 if copied.complete else 1


def _one(config: Config, name: str | None) -> str:
    from pgtide.sinks.postgres.reaching import postgres_pipelines

    if name is not None:
        known_pipeline(config, name)
    found = postgres_pipelines(config, name)
    if len(found) > 1:
        raise ConfigError(
            "several pipelines have a Postgres target",
            hint=f"Name one with --pipeline: {', '.join(found)}",
        )
    return found[0]


def _print_check(check: Check) -> None:
    print_line(check.level, f"{check.name}: {check.message}", check.hint)


def _conclude(config: Config, outcome: Outcome) -> None:
    target = getattr(config.pipelines[outcome.pipeline].sink, "url", "")
    if outcome.ready:
        print_line("ok", f"ready: point the application at {target}, then stop pgtide run")
    else:
        tried = any(check.name == "read-only" for check in outcome.checks)
        undone = "; the source can be written to again" if tried and not outcome.undo else ""
        print_line("fail", f"not ready: the target {target} cannot take over yet{undone}")
    if outcome.undo:
        print_line("warn", "the source stays read-only; to undo that, run there:", outcome.undo)
