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
        typer.Option("--keep", metavar="DIR", help="Leave the log and its configuration in DIR."),
    ] = None,
) -> int:
    """Watch changes of a small shop arrive, without any set-up.

    Starts a Postgres of its own in a temporary directory, captures what a small
    shop does in it, kills the capture in the middle and starts it again, then
    reads the log back and compares it with what Postgres committed. Takes some
    ten seconds and leaves nothing behind. Exits with 1 if anything differs.
    JSON: {"ok", "events", "committed", "transactions", "counts", "unchanged",
    "shapes", "tables", "position", "seconds"}.

    \b
    Example:
      pgtide demo --keep ./demo
    """
    from pgtide.demo.live import Screen
    from pgtide.demo.report import document, print_kept, print_report
    from pgtide.demo.run import Demo, interruptible

    as_json = ctx.ensure_object(Invocation).json
    screen = Screen(quiet=as_json)
    screen.say("A small shop in a Postgres of its own, captured as it happens.\n")
    demo = Demo(screen, keep.absolute() if keep else None)
    with interruptible():
        found = demo.run()
    summary = document(demo.shop, found, demo.clock.stages)
    if as_json:
        print(json.dumps(summary))
    else:
        print_report(screen, demo.shop, found, demo.clock.stages)
        if keep:
            print_kept(screen, keep)
    return 0 if summary["ok"] else 1
