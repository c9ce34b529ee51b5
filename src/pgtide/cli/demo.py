"""``pgtide demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pgtide.cli.invocation import Invocation


def command(
    ctx: typer.Context,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Leave log, lake and configuration in DIR."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="How long the shop is open.")
    ] = 60.0,
) -> int:
    """Watch changes of a small shop become lake tables, without any set-up.

    Starts a Postgres of its own in a temporary directory, runs pgtide on it with two
    pipelines (a mirror of every table, a pivot of the orders) while a small shop does
    business, kills all of it in the middle and starts it again. Then it compares the log
    and the lake with what Postgres holds and with what the shop counted. Takes about a
    minute and a half and leaves nothing behind. Exits with 1 if anything differs.
    JSON: {"ok", "events", "committed", "transactions", "counts", "unchanged", "shapes",
    "tables", "lake": [{"table", "source": {"rows", "checksum"}, "lake": {"rows",
    "checksum"}, "equal"}], "pivot": {"rows", "expected", "answers": [{"question", "answer",
    "counted"}]}, "applied": {PIPELINE: events}, "batches": {PIPELINE: batches}, "position",
    "seconds"}.

    \b
    Example:
      pgtide demo --keep ./demo
    """
    from pgtide.demo.live import Screen
    from pgtide.demo.report import document, print_report, print_whereabouts
    from pgtide.demo.run import Demo, interruptible

    as_json = ctx.ensure_object(Invocation).json
    screen = Screen(quiet=as_json)
    screen.say("A small shop in a Postgres of its own; its tables in a lake, as it happens.\n")
    with interruptible() as interrupted:
        demo = Demo(screen, keep.absolute() if keep else None, seconds, interrupted)
        results = demo.run()
    if as_json:
        print(json.dumps(document(results, demo.clock.stages)))
    else:
        print_report(screen, results, demo.clock.stages)
        print_whereabouts(screen, keep)
    return 0 if results.ok else 1
