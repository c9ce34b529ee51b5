"""``pgtide resume``: take up tables that a pipeline has parked."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.run import known_pipeline
from pgtide.errors import ConfigError


def command(
    ctx: typer.Context,
    pipeline: Annotated[
        str, typer.Option("--pipeline", "-p", metavar="NAME", help="Whose tables.")
    ],
    table: Annotated[
        str | None,
        typer.Option("--table", "-t", metavar="SCHEMA.TABLE", help="Only this one, not all."),
    ] = None,
) -> None:
    """Take up tables that a pipeline has parked.

    A running pipeline does it between two batches, a stopped one when it starts: the table
    catches up from the log, and then flows with the others. If it fails again
    it is parked again. JSON: {"pipeline", "tables": [name], "running"}.

    \b
    Example:
      pgtide resume --pipeline lake --table public.orders
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    known_pipeline(config, pipeline)
    from pgtide.log.reader import Log
    from pgtide.log.storage import Storage
    from pgtide.pipeline.lease import holder_of
    from pgtide.pipeline.state_file import StateFile

    Log(config.log.path, config.log.storage)  # says best what is wrong with the path
    storage = Storage(config.log.path, config.log.storage)
    file = StateFile(storage, pipeline)
    state = file.load()
    parked = sorted(state.parked) if state is not None else []
    if table is not None and table not in parked:
        known = ", ".join(parked) or "none"
        raise ConfigError(f"{table} is not parked", hint=f"Parked tables of {pipeline}: {known}.")
    if parked:
        file.ask_resume(table)
    running = holder_of(storage, pipeline) is not None
    tables = [table] if table else parked
    if invocation.json:
        print(json.dumps({"pipeline": pipeline, "tables": tables, "running": running}))
    elif not parked:
        print_line("ok", f"pipeline {pipeline} has no parked tables")
    else:
        when = "between two batches" if running else "when it starts: pgtide run"
        print_line("ok", f"pipeline {pipeline} will resume {', '.join(tables)}, {when}")
