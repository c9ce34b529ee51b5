"""``pgtide replay``: build a pipeline's target from the log once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.run import beside_events, known_pipeline, parked_error, spark_session

if TYPE_CHECKING:
    from pgtide.config import Config


def command(
    ctx: typer.Context,
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", metavar="NAME", help="Which one.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION|TIME",
            help="Deliver again from that transaction on, and delete nothing.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Build a pipeline's target from the log once more.

    Deletes the pipeline's Delta tables and what it knows of itself, then runs it until it has
    applied all that the log holds. With --from the target stays, and changes are delivered again
    on top of it: for one that was restored to an earlier moment. Of a time (ISO 8601, UTC unless
    it says otherwise), from the first transaction on that was committed then or later. Where
    retention has cut the log, tables of a mirror are read at the source again: capture does it,
    as with pgtide refresh. Refused while the pipeline runs, when the log does not go back far
    enough for anything else, and where files hold changes already. Exits with 1 if tables are
    parked at the end. JSON: {"pipeline", "deleted": [place], "read_again": [table], "position",
    "rows", "batches", "withheld", "skipped_writes", "last_batch", "parked"}.

    \b
    Examples:
      pgtide replay --pipeline lake
      pgtide replay --pipeline lake --from 16/B374D848 --yes
      pgtide replay --pipeline lake --from "2026-01-31 12:00"
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    known_pipeline(config, pipeline)
    from pgtide.cli.pipeline_facts import state_document
    from pgtide.pipeline.replaying import check_replay, replay, start_of, target_tables

    position = start_of(config, start)
    again = check_replay(config, pipeline, position)
    deleted = target_tables(config, pipeline) if position is None else []
    if not yes:
        _ask(config, pipeline, deleted, again)
    spark = spark_session(config)
    try:
        state = replay(spark, config, pipeline, position)
    finally:
        spark.stop()
    with beside_events(config, [pipeline]):
        if invocation.json:
            facts = {"pipeline": pipeline, "deleted": deleted, "read_again": again}
            facts |= state_document(state)
            print(json.dumps(facts))
        else:
            print_line("ok", f"pipeline {pipeline} is at {state.position}, {state.rows} rows")
            if again:
                print_line("ok", f"{len(again)} tables are read again: pgtide refresh --list")
            for name, parked in sorted(state.parked.items()):
                print_line("fail", f"parked {name}: {parked.message}", parked.hint)
    if state.parked:
        raise parked_error(pipeline)


def _ask(config: Config, pipeline: str, deleted: list[str], again: list[str]) -> None:
    if deleted:
        path = getattr(config.pipelines[pipeline].sink, "path", "")
        typer.echo(f"These tables below {path} will be deleted and built anew:", err=True)
        for place in deleted:
            typer.echo(f"  {place}", err=True)
    if again:
        typer.echo("The log has lost its beginning; read at the source again:", err=True)
        for table in again:
            typer.echo(f"  {table}", err=True)
    typer.confirm(f"Replay pipeline {pipeline}?", abort=True, err=True)
