"""``pgtide init``: prepare the source and create the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.errors import LogError, LogMissing

if TYPE_CHECKING:
    from pgtide.config import Config
    from pgtide.position import Lsn
    from pgtide.postgres.setup import InitResult


def command(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the SQL for a DBA and change nothing.")
    ] = False,
) -> None:
    """Prepare the source: publication, slot, DDL triggers; and create the log.

    Running it again is safe: what is there already is left alone. With
    --dry-run stdout is a script for psql. JSON: {"slot", "slot_created",
    "consistent_point", "database", "system_identifier", "timeline",
    "log_created", "steps": [{"name", "text", "state": "done" | "already" |
    "note"}]}; with --dry-run {"sql"}.

    \b
    Example:
      pgtide init --dry-run | psql
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.cli.log_probe import probe_log
    from pgtide.postgres.setup import init

    probe = probe_log(config)
    if probe.problem and not dry_run:
        raise LogError(
            "the log cannot be created here",
            detail=f"{probe.path}: {probe.problem}",
            hint="Correct log.path or its storage options.",
        )
    result = init(config, dry_run=dry_run, log=probe.source)
    if dry_run:
        script = _script(result)
        print(json.dumps({"sql": script}) if invocation.json else script)
        return
    created = _create_log(config, result, exists=probe.source is not None)
    if invocation.json:
        print(json.dumps(_document(result, created)))
    else:
        _print(config, result, created)


def _create_log(config: Config, result: InitResult, *, exists: bool) -> bool:
    """Make the log at the slot's consistent point; without one the new slot goes again."""
    if exists:
        return False
    if result.consistent_point is None:
        raise LogMissing(
            f"slot {result.slot} exists, but there is no log at {config.log.path}",
            detail="A log can only begin together with its slot.",
            hint="Correct log.path, or start over: pgtide destroy --yes && pgtide init",
        )
    try:
        begin_log(config, result, result.consistent_point)
    except BaseException:
        _drop_slot(config, result.slot)
        raise
    return True


def begin_log(config: Config, result: InitResult, start: Lsn) -> None:
    """Make an empty log of the source that was set up."""
    from pgtide.log.writer import create_log

    create_log(
        config.log.path,
        config.log.storage,
        system_identifier=result.system_identifier,
        database=result.database,
        slot=result.slot,
        start=start,
        timeline=result.timeline,
        baseline=result.baseline or (),
    )


def _drop_slot(config: Config, slot: str) -> None:
    from pgtide.postgres.connection import connect
    from pgtide.postgres.slot import drop_slot

    with connect(config.source.url.reveal(), application_name="pgtide init") as conn:
        drop_slot(conn, slot)


def _script(result: InitResult) -> str:
    parts = [f"-- {step.text}\n" if step.note else step.script() for step in result.steps]
    return "\n".join(part for part in parts if part)


def _state(done: bool, note: bool) -> str:
    return "note" if note else "already" if done else "done"


def _document(result: InitResult, created: bool) -> dict[str, Any]:
    return {
        "slot": result.slot,
        "slot_created": result.slot_created,
        "consistent_point": str(result.consistent_point) if result.slot_created else None,
        "database": result.database,
        "system_identifier": result.system_identifier,
        "timeline": result.timeline,
        "log_created": created,
        "steps": [
            {"name": step.name, "text": step.text, "state": _state(step.done, step.note)}
            for step in result.steps
        ],
    }


def _print(config: Config, result: InitResult, created: bool) -> None:
    for step in result.steps:
        suffix = " (already there)" if step.done else ""
        print_line("warn" if step.note else "ok", step.text + suffix)
    print_line("ok", f"log {config.log.path}" + ("" if created else " (already there)"))
