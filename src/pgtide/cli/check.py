"""``pgtide check``: every precondition, one line each."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.errors import EnvironmentMissing
from pgtide.standard_output import stdout_may_close

if TYPE_CHECKING:
    from pgtide.config import Config
    from pgtide.postgres.verdict import Check


def command(ctx: typer.Context) -> int:
    """Check every precondition and say what to do.

    Changes nothing. SQL of rules, and patterns with names of scripts, are shown to Spark, which
    starts for it. Exits with 1 when a
    check fails; a warning (!) does not count. Exits with 3 when the source cannot be reached.
    JSON: {"ok": bool, "checks": [{"name", "level": "ok" | "warn" | "fail", "message", "hint"}]}.

    \b
    Example:
      pgtide check --json
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    from pgtide.cli.log_probe import check_sinks, probe_log
    from pgtide.postgres.health import run_checks

    checks = [*run_checks(config, probe_log(config)), *check_sinks(config)]
    checks += _target_checks(config)
    checks += _history_checks(config)
    checks += _sql_checks(config)
    failed = any(check.level == "fail" for check in checks)
    with stdout_may_close():
        if invocation.json:
            print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
        else:
            for check in checks:
                print_line(check.level, f"{check.name}: {check.message}", check.hint)
    return 1 if failed else 0


def _target_checks(config: Config) -> list[Check]:
    """Whether Postgres targets can be written to."""
    from pgtide.config.sinks import PostgresSettings
    from pgtide.postgres.connection import connect

    if not any(isinstance(p.sink, PostgresSettings) for p in config.pipelines.values()):
        return []
    from pgtide.sinks.postgres.checking import check_targets
    from pgtide.sinks.postgres.session import database_of

    with connect(config.source.url.reveal(), application_name="pgtide check") as conn:
        source = database_of(conn)
    return list(check_targets(config, source))


def _history_checks(config: Config) -> list[Check]:
    """Whether the rows that are there already can be read, where they are to be."""
    from pgtide.config import TablePatterns
    from pgtide.errors import PrivilegeMissing
    from pgtide.postgres.connection import connect
    from pgtide.postgres.publication import publication_names
    from pgtide.postgres.verdict import fail, ok
    from pgtide.snapshot.tables import select_tables

    if config.source.snapshot == "never":
        return []
    patterns = TablePatterns(config.source.tables)
    with connect(config.source.url.reveal(), application_name="pgtide check") as conn:
        names = publication_names(conn, config.source.slot)
        if config.source.slot not in names:
            return []  # which has its own line
        try:
            selection = select_tables(conn, names, [patterns], {})
        except PrivilegeMissing as error:
            return [fail("history", f"{error.message}: {error.detail}", error.hint)]
    return [ok("history", f"the role may read the rows of {len(selection.tables)} tables")]


def _sql_checks(config: Config) -> list[Check]:
    """What only Spark can tell of the rules; it is started if there is something to ask."""
    from pgtide.config import TablePatterns
    from pgtide.postgres.catalog import read_layouts
    from pgtide.postgres.connection import connect
    from pgtide.postgres.verdict import warn
    from pgtide.rules.checking import needs_spark

    rules = [rule for pipeline in config.pipelines.values() for rule in pipeline.rules]
    if not any(map(needs_spark, rules)):
        return []
    with connect(config.source.url.reveal(), application_name="pgtide check") as conn:
        shapes = list(read_layouts(conn, TablePatterns(config.source.tables)).values())
    from pgtide.rules.sql_checking import check_sql
    from pgtide.spark.session import start

    try:
        spark = start({**config.spark.conf, "spark.master": "local[1]"})
    except EnvironmentMissing as error:
        return [
            warn(
                "rules", f"SQL and patterns of rules were not checked: {error.message}", error.hint
            )
        ]
    try:
        return list(check_sql(config.pipelines, shapes))
    finally:
        spark.stop()
