"""``pgtide verify``: whether mirrors are equal to the source."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.run import chosen, spark_session
from pgtide.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgtide.verify.report import PipelineReport


def command(
    ctx: typer.Context,
    pipeline: Annotated[
        list[str] | None,
        typer.Option("--pipeline", "-p", metavar="NAME", help="Only this one; repeatable."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", metavar="PATTERN", help="Only these tables; repeatable."),
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Compare only this share of the rows, as in 0.05."),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Draw the same sample as an earlier call.")
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Read the differing rows again, then verify once more."),
    ] = False,
) -> int:
    """Compare mirrors with the source and list the rows that differ.

    Source and target are compared at one position while both move; rows that are being changed
    are left out. Delta tables and Postgres targets in mode mirror can be verified. Capture and
    pipeline may run, or are brought up to date here. Exits with 1 when something differs (after
    --repair: still differs), or when nothing that was named can be compared. Of a row that
    differs its key is printed and the names of columns, never other values. JSON: {"equal": bool,
    "pipelines":
    [{"pipeline", "equal": bool or null, "refused": why or "", "seed", "repaired": [table],
    "tables": [{"table", "equal": bool, or null when refused, "refused", "position", "rows",
    "target_rows", "in_flight": keys left out, "missing", "extra", "different": counts, "key":
    [column], "differences": [{"kind": "missing" | "extra" | "different", "key": [text],
    "columns": [name]}], the first 100, "left_out": {column: why}, "note": what else there is to
    say, "sample", "seconds"}]}]}.

    \b
    Examples:
      pgtide verify
      pgtide verify --pipeline lake --table public.orders --repair
      pgtide verify --sample 0.05 --json
    """
    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    names = chosen(config, pipeline or [])
    if sample is not None and not 0 < sample <= 1:
        raise ConfigError("--sample takes a share", hint="Write a number above 0, up to 1.")
    from pgtide.cli.verify_progress import VerifyReporter, conclude
    from pgtide.verify.repair import Repair
    from pgtide.verify.verifying import Options, Verification

    seed = seed or secrets.token_hex(4)
    sessions: list[SparkSession] = []

    def spark() -> SparkSession:
        """Spark, started when it is first needed: a Postgres target is verified without."""
        if not sessions:
            sessions.append(spark_session(config))
        return sessions[0]

    documents, equal = [], True
    try:
        with VerifyReporter(quiet=invocation.json) as reporter:
            for name in names:
                told = reporter.telling_of(name)
                options = Options(tables=table or [], sample=sample, seed=seed, on_progress=told)
                report = Verification(spark, config, name, options).run()
                repaired: list[str] = []
                if repair and report.differing:
                    repaired = Repair(spark, config, name).run(report)
                if repaired:
                    options = Options(only=repaired, on_progress=told)
                    report = _joined(report, Verification(spark, config, name, options).run())
                documents.append({**report.document(), "repaired": repaired})
                named = bool(pipeline or table)
                equal &= not report.differing and not (named and _nothing(report))
                if not invocation.json:
                    conclude(report, repaired)
    finally:
        for session in sessions:
            session.stop()
    if invocation.json:
        print(json.dumps({"equal": equal, "pipelines": documents}, ensure_ascii=False))
    return 0 if equal else 1


def _joined(first: PipelineReport, again: PipelineReport) -> PipelineReport:
    """The first report, with the tables that were looked at once more as they are now."""
    newer = {table.table: table for table in again.tables}
    first.tables = [newer.get(table.table, table) for table in first.tables]
    return first


def _nothing(report: PipelineReport) -> bool:
    """Whether none of it could be compared."""
    return bool(report.refused) or all(table.refused for table in report.tables)
