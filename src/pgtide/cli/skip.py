"""``pgtide skip``: leave out a DDL statement that a target cannot, or should not, replay."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.run import known_pipeline


def command(
    ctx: typer.Context,
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help="Of the statement, as LSN:SEQ.")
    ],
    pipeline: Annotated[
        str, typer.Option("--pipeline", "-p", metavar="NAME", help="Whose target leaves it out.")
    ],
) -> None:
    """Leave out a DDL statement at a Postgres target.

    For one that failed there and that you have replaced by hand, or do without. It is noted in
    the target (pgtide.skipped); the pipeline goes on behind it when it runs next. Refused when
    there is no DDL at that position of the log, or when it is applied already. JSON:
    {"pipeline", "position", "tag", "table", "again": whether it was noted before}.

    \b
    Example:
      pgtide skip --pipeline replica 16/B374D848:3
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    known_pipeline(config, pipeline)
    from pgtide.log.reader import Log
    from pgtide.position import Position
    from pgtide.sinks.postgres.failures import asking_target
    from pgtide.sinks.postgres.reaching import connect_target, refuse_history
    from pgtide.sinks.postgres.skipping import skip

    refuse_history(config, pipeline)
    at = Position.parse(position)
    log = Log(config.log.path, config.log.storage)
    again = f"Run it again: pgtide skip --pipeline {pipeline} {at}"
    with (
        asking_target("what to leave out is noted", again),
        connect_target(config, pipeline, application_name="pgtide skip") as connection,
    ):
        skipped = skip(connection, log, pipeline, at)
    if invocation.json:
        facts = {"tag": skipped.tag, "table": skipped.table, "again": skipped.again}
        print(json.dumps({"pipeline": pipeline, "position": str(at), **facts}))
        return
    about = f" of {skipped.table}" if skipped.table else ""
    print_line("ok", f"pipeline {pipeline} leaves out the {skipped.tag}{about} at {at}")
