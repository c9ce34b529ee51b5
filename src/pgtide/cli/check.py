"""``pgtide check``: every precondition, one line each."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.standard_output import stdout_may_close


def command(ctx: typer.Context) -> int:
    """Check every precondition and say what to do.

    Changes nothing. Exits with 1 when a check fails; a warning (!) does not
    count. Exits with 3 when the source cannot be reached. JSON: {"ok": bool,
    "checks": [{"name", "level": "ok" | "warn" | "fail", "message", "hint"}]}.

    \b
    Example:
      pgtide check --json
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.cli.log_probe import check_sinks, probe_log
    from pgtide.postgres.health import run_checks

    checks = [*run_checks(config, probe_log(config)), *check_sinks(config)]
    failed = any(check.level == "fail" for check in checks)
    with stdout_may_close():
        if invocation.json:
            print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
        else:
            for check in checks:
                print_line(check.level, f"{check.name}: {check.message}", check.hint)
    return 1 if failed else 0
