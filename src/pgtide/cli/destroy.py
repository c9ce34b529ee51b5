"""``pgtide destroy``: remove from the source what ``init`` made."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line


def command(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="End a capture that is attached.")] = False,
) -> None:
    """Remove from the source what init made: slot, publication, triggers, schema.

    The log stays. Changes that were not captured yet can no longer be read
    afterwards. Refuses while a capture is attached. JSON: {"removed": [text],
    "left": [text]}.

    \b
    Example:
      pgtide destroy --yes
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.postgres.teardown import destroy

    if not yes:
        where = f"slot {config.source.slot} of {config.source.admin}"
        question = f"Remove {where} and all that belongs to it?"
        typer.confirm(question, abort=True, err=True)
    result = destroy(config, force=force)
    if invocation.json:
        print(json.dumps({"removed": result.removed, "left": result.left}))
        return
    for text in result.removed:
        print_line("ok", f"removed {text}")
    if not result.removed:
        print_line("ok", "nothing to remove")
    for text in result.left:
        print_line("warn", f"left as it is: {text}")
