"""The ``pgtide`` command: a static table of commands, each loaded when it runs.

A command is a module of this package that has a ``command``: a function with
typer annotations, or a ``typer.Typer`` with sub-commands. It reads the global
options from ``ctx.ensure_object(Invocation)`` and never declares them itself;
they are accepted before and after the command's name. It prints results on
stdout, raises PgtideError, and may return an exit code.

Exit codes: 0 fine, 1 failed at run time, 2 wrong usage or configuration,
3 something is missing in the environment, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pgtide.cli.invocation import Invocation, global_options
from pgtide.cli.rendering import configure_logging, render_error, render_unexpected
from pgtide.errors import ConfigError, PgtideError
from pgtide.standard_output import stdout_may_close

COMMANDS = {
    "demo": "Watch changes of a small shop become lake tables, without any set-up.",
    "init": "Prepare the source: publication, slot, DDL triggers; and create the log.",
    "check": "Check every precondition and say what to do.",
    "run": "Run capture and pipelines together.",
    "capture": "Stream changes from the source into the log.",
    "snapshot": "Copy the rows that are there already into the log.",
    "status": "Show slot, log, pipelines and how far each is behind.",
    "refresh": "Read rows of a table again while everything runs.",
    "resume": "Take up tables that a pipeline has parked.",
    "replay": "Build a pipeline's target from the log once more.",
    "skip": "Leave out a DDL statement at a Postgres target.",
    "verify": "Compare mirrors with the source and list the rows that differ.",
    "cutover": "Check that a Postgres target can take over from the source.",
    "log": "Look at the change log and maintain it.",
    "destroy": "Remove from the source what init made: slot, publication, triggers, schema.",
    "version": "Print the versions of pgtide and what it runs on.",
}
"""Name and short help; the code is in the module of the same name, unread until it runs."""

USAGE_HINT = "see pgtide --help"


class LazyGroup(TyperGroup):
    """A group that knows names and short helps, and imports a command to run it."""

    def __init__(self) -> None:
        stubs = [TyperCommand(name, help=text) for name, text in COMMANDS.items()]
        super().__init__(
            name="pgtide",
            commands=stubs,
            params=global_options(),
            rich_markup_mode=None,
            help="Stream a Postgres database into a durable, ordered change log, and on.",
            epilog="\b\nExample:\n  pgtide -c pgtide.yaml check",
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest

    def invoke(self, ctx: Any) -> Any:
        # A command whose exit code says something sees to this itself, around what it prints.
        with stdout_may_close():
            return super().invoke(ctx)


def load_command(name: str) -> Any:
    """Import a command and give it the global options."""
    found = import_module(f"pgtide.cli.{name}").command
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    parent.callback()(lambda: None)  # keeps a parent of one command a group
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    group: Any = get_command(parent)
    loaded = group.commands[name]
    _add_global_options(loaded)
    return loaded


def _add_global_options(command: Any) -> None:
    command.params.extend(global_options())
    for child in getattr(command, "commands", {}).values():
        _add_global_options(child)


def run_command(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    invocation = Invocation()
    configure_logging(invocation.log_level)
    try:
        result = LazyGroup().main(
            list(argv) or ["--help"], prog_name="pgtide", standalone_mode=False, obj=invocation
        )
    except PgtideError as error:
        return render_error(error, as_json=invocation.json)
    except typer.TyperException as error:
        if error.format_message().startswith("Usage:"):  # a group without its sub-command
            typer.echo(error.format_message(), err=True)
            return error.exit_code
        usage = ConfigError(error.format_message().rstrip("."), hint=USAGE_HINT)
        # The parser may have stopped before it came to the flag.
        return render_error(usage, as_json=invocation.json or "--json" in argv)
    except typer.Abort:
        return render_error(PgtideError("aborted"), as_json=invocation.json)
    except Exception as error:
        return render_unexpected(error, invocation.log_level, as_json=invocation.json)
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run_command(sys.argv[1:]))
