"""``pgtide snapshot``: the rows that are there already, into the log."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgtide.cli.invocation import Invocation
from pgtide.cli.marks import print_line
from pgtide.cli.stopping import stop_on_signals
from pgtide.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgtide.config import Config
    from pgtide.snapshot.initial import InitialSnapshot
    from pgtide.snapshot.request import Request
    from pgtide.snapshot.target_schemas import TargetSchemas

ATTACHED = "PGTIDE_ATTACHED"
"""In the environment of a snapshot that ends when its stdin does, with whoever started it."""

QUICK_START = "-XX:TieredStopAtLevel=1"  # of Java


def command(
    ctx: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Only these tables; repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="TABLE=SQL", help="Only rows that satisfy this; repeatable."
        ),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="First make the source's schema at empty Postgres targets."),
    ] = False,
    pipeline: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", metavar="NAME", help="With --schema: only this target."),
    ] = None,
) -> int:
    """Copy the rows that are there already into the log.

    Spark tasks read all tables at one point of the WAL, in parallel, and one commit makes them
    part of the log. Capture and run do this by themselves when they start on an empty log and
    source.snapshot is initial. On a log that has changes already, targets lose what is not
    there any more; tables of --where lose nothing. Nobody may capture meanwhile. Until it is
    complete nothing has changed, and it can be run again. With --schema, pg_dump reads the
    schema at the same point and the targets of Postgres pipelines are made with it: types,
    functions, tables and views at once; indexes, constraints and triggers when the rows are
    there. Owners and privileges are not copied. JSON: {"point", "seconds", "rows",
    "tables": {NAME: rows}, "left_out": [text], "schemas": {PIPELINE: {"tables", "after_rows":
    statements that wait for the rows}}}.

    \b
    Examples:
      pgtide snapshot
      pgtide snapshot --schema --pipeline replica
      pgtide snapshot --tables 'shop.*' --where "shop.orders=created > now() - interval '1 year'"
    """
    from pgtide.snapshot.request import Request, check_request, parse_conditions

    invocation = ctx.ensure_object(Invocation)
    config = invocation.config
    request = Request(tuple(tables or ()), parse_conditions(where or ()))
    schemas = _schemas(config, request, pipeline) if schema else None
    if pipeline is not None and schemas is None:
        raise ConfigError("--pipeline says whose schema is made", hint="Add --schema.")
    stop = threading.Event()
    stop_on_signals(stop.set)
    if os.environ.get(ATTACHED):
        threading.Thread(target=_until_left_alone, args=(stop,), daemon=True).start()
    selection = check_request(config, request)
    if schemas is not None:
        schemas.check(selection)
    spark = copying_session(config)
    try:
        taken = take(config, spark, request, stop, quiet=invocation.json, schemas=schemas)
    finally:
        spark.stop()
    if taken.progress.stage != "done":
        raise Interrupted(
            "the snapshot was stopped",
            detail="It has changed nothing.",
            hint="Take it again: pgtide snapshot",
        )
    if invocation.json:
        print(json.dumps({**document(taken), "schemas": _made(schemas)}))
    else:
        conclude(taken)
        for name, made in _made(schemas).items():
            print_line(
                "ok",
                f"made the schema of {made['tables']} tables for pipeline {name};"
                f" {made['after_rows']} statements wait for the rows: pgtide run",
            )
    return 0


def _schemas(config: Config, request: Request, pipeline: str | None) -> TargetSchemas:
    from pgtide.cli.run import known_pipeline
    from pgtide.sinks.postgres.reaching import postgres_pipelines
    from pgtide.snapshot.target_schemas import TargetSchemas

    if pipeline is not None:
        known_pipeline(config, pipeline)
    if not request.whole:
        raise ConfigError(
            "--schema goes with a snapshot of everything",
            detail="A target begins at the snapshot: what it leaves out would never get there.",
            hint="Leave out --tables and --where; a pipeline's tables say what its target has.",
        )
    return TargetSchemas(config, postgres_pipelines(config, pipeline))


def _made(schemas: TargetSchemas | None) -> dict[str, dict[str, int]]:
    return {
        name: {"tables": schema.tables, "after_rows": len(schema.after)}
        for name, schema in (schemas.schemas if schemas else {}).items()
    }


def copying_session(config: Config) -> SparkSession:
    """A Spark session for nothing but a snapshot: Java hands out tasks, Python does the work.

    Half of the CPU time that Java took went into compiling once more, and better, what is over
    before that pays.
    """
    from pgtide.cli.run import spark_session

    options = "spark.driver.extraJavaOptions"
    given = f"{QUICK_START} {config.spark.conf.get(options, '')}".strip()
    conf = {**config.spark.conf, options: given}
    spark = config.spark.model_copy(update={"conf": conf})
    return spark_session(config.model_copy(update={"spark": spark}), hears_signals=True)


def take(
    config: Config,
    spark: SparkSession,
    request: Request | None,
    stop: threading.Event,
    *,
    quiet: bool,
    schemas: TargetSchemas | None = None,
) -> InitialSnapshot:
    """Take a snapshot and show how far it is."""
    from pgtide.cli.snapshot_progress import SnapshotReporter
    from pgtide.snapshot.initial import InitialSnapshot
    from pgtide.snapshot.patience import take_patiently

    with SnapshotReporter(quiet=quiet) as reporter:
        return take_patiently(
            lambda: InitialSnapshot(
                config, spark, request, stop=stop, on_progress=reporter, schemas=schemas
            ),
            stop,
        )


def document(taken: InitialSnapshot) -> dict[str, Any]:
    """What was read, as JSON."""
    progress = taken.progress
    return {
        "point": str(progress.point),
        "seconds": round(progress.seconds, 3),
        "rows": progress.rows,
        "tables": {name: table.rows for name, table in progress.tables.items()},
        "left_out": list(progress.left_out),
    }


def conclude(taken: InitialSnapshot) -> None:
    """The last word, on stdout."""
    progress = taken.progress
    for text in progress.left_out:
        print_line("warn", f"left out {text}")
    said = f"read {progress.rows} rows of {len(progress.tables)} tables at {progress.point}"
    print_line("ok", said)


def _until_left_alone(stop: threading.Event) -> None:
    # Not through sys.stdin, whose lock a thread in the middle of reading would keep at exit.
    os.read(0, 1)
    stop.set()
