"""Replaying a pipeline: its target is built from the log once more.

The state goes first, then the target, each table at once: whatever a crash leaves is a new
pipeline on a target that has either the whole table or none of it. In an object store, where a
table cannot go at once, the new pipeline completes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from pyspark.sql import SparkSession

from pgtide.config import TablePatterns
from pgtide.config.model import Config, Pipeline
from pgtide.config.sinks import DeltaSettings, FileSettings, PostgresSettings
from pgtide.errors import ConfigError, LogGap, PipelineError
from pgtide.log.files import walk
from pgtide.log.lookup import begins_before, first_since
from pgtide.log.reader import Log
from pgtide.log.readers import update_reader
from pgtide.log.schema import CHANGES
from pgtide.log.storage import Storage
from pgtide.pipeline.cut_log import have_read, tables_to_read
from pgtide.pipeline.lease import Lease
from pgtide.pipeline.parking import reader_name
from pgtide.pipeline.running import PipelineRun
from pgtide.pipeline.state import State
from pgtide.pipeline.state_file import StateFile
from pgtide.position import Lsn, Position
from pgtide.rules import compile_rules
from pgtide.shape import Shape
from pgtide.sinks.delta.gone import Gone
from pgtide.sinks.delta.lake import name_aside, source_text
from pgtide.sinks.delta.moving import recover, remove
from pgtide.sinks.directories import table_path
from pgtide.sinks.ledger import ledgers
from pgtide.sinks.postgres.bookkeeping import target_position
from pgtide.sinks.postgres.reaching import connect_target
from pgtide.spark.moments import moment_of


def start_of(config: Config, start: str | None) -> Position | None:
    """Where a replay begins that is given a position or a time: ConfigError if it is neither.

    Of a time: at the first transaction that was committed then or later.
    """
    moment = moment_of(start, "--from")
    if not isinstance(moment, datetime):
        return moment
    snapshot = Log(config.log.path, config.log.storage).snapshot()
    changes = Storage(config.log.path, config.log.storage).child(CHANGES)
    found = first_since(changes, snapshot, moment)
    if found is None:
        raise ConfigError(
            "nothing was committed since then",
            detail=f"The log has no change of {moment.isoformat()} or later.",
            hint="Give an earlier time; one without a zone is UTC.",
        )
    if snapshot.complete_from and not begins_before(changes, snapshot, moment, found):
        raise LogGap(
            "the log does not go back far enough",
            detail=f"Retention has kept {snapshot.complete_from} and later, all of it committed "
            f"since {moment.isoformat()}: there may have been more.",
            hint="Give a later time; or, for a target that is complete up to there: "
            f"--from {snapshot.complete_from}",
        )
    return Position(found)


def check_replay(config: Config, name: str, start: Position | None) -> list[str]:
    """Refuse while it runs, and what could only end with half a table.

    The tables that are to be read at the source, because the log no longer has all of them.
    """
    with Lease(Storage(config.log.path, config.log.storage), name):
        return _check(config, name, start)


def _hold(config: Config, name: str, start: Position | None) -> None:
    """Keep the log as it is before anything is deleted: retention may run at any moment."""
    _check(config, name, start)
    version = Log(config.log.path, config.log.storage).snapshot().version
    log = Storage(config.log.path, config.log.storage)
    update_reader(log, reader_name(name), version, start or Position(Lsn(0)))
    _check(config, name, start)


def _check(config: Config, name: str, start: Position | None) -> list[str]:
    snapshot = Log(config.log.path, config.log.storage).snapshot()
    needed = start.lsn if start is not None else 0
    if start is None and snapshot.complete_from and _can_be_read(config, name):
        return tables_to_read(config, name)
    if needed < snapshot.complete_from:
        raise LogGap(
            "the log does not go back far enough",
            detail=f"Retention has kept {snapshot.complete_from} and later"
            + (f", {start} was asked for." if start else "; older changes are gone."),
            hint="A target that is complete up to there, or takes events only, can go on: "
            f"pgtide replay --pipeline {name} --from {snapshot.complete_from}",
        )
    sink = config.pipelines[name].sink
    if isinstance(sink, FileSettings) and (written := _written(sink)) > (start or Position(Lsn(0))):
        raise PipelineError(
            "files are written once",
            detail=f"Those below {sink.path} hold changes up to {written}, which would not be "
            "written again.",
            hint=f"Move {sink.path} away, then again: pgtide replay --pipeline {name}",
        )
    if isinstance(sink, PostgresSettings) and sink.mode == "history":
        _refuse_appended(config, name, start or Position(Lsn(0)))
    elif isinstance(sink, PostgresSettings):
        raise PipelineError(
            "a Postgres target says itself what it has",
            detail=f"What {sink.url} had before would be refused, or be there twice.",
            hint="Begin with an empty database: pgtide snapshot --schema; to mend rows: "
            f"pgtide verify --pipeline {name} --repair",
        )
    keeps_state = isinstance(sink, DeltaSettings) and sink.mode in ("mirror", "scd2")
    if start is not None and keeps_state and not target_tables(config, name):
        raise PipelineError(
            "there is no target to go on with",
            detail=f"Pipeline {name} keeps the state of tables; from {start} on alone they "
            "would lack rows.",
            hint=f"Build it from the beginning: pgtide replay --pipeline {name}",
        )
    return []


def _refuse_appended(config: Config, name: str, start: Position) -> None:
    """A history goes on behind what it has, and leaves out what comes again."""
    with connect_target(config, name, application_name="pgtide replay") as connection:
        reached = target_position(connection, name)
    if reached is not None and reached > start:
        raise PipelineError(
            "changes are appended once",
            detail=f"The histories of pipeline {name} hold them up to {reached}; those would not "
            "be appended again.",
            hint="To build them anew, give the pipeline another name, and another database or "
            "routes to another schema: pgtide run",
        )


def _can_be_read(config: Config, name: str) -> bool:
    """Whether the source can tell what the log does not: the state of tables, no past of theirs."""
    sink = config.pipelines[name].sink
    if not isinstance(sink, DeltaSettings):
        return False
    return sink.mode == "mirror" or (sink.mode == "scd2" and not target_tables(config, name))


def _written(sink: FileSettings) -> Position:
    """Up to where files hold changes, of some table."""
    found = [ledger.position for ledger in ledgers(Storage(sink.path, sink.storage))]
    return max((p for p in found if p is not None), default=Position(Lsn(0)))


def target_tables(config: Config, name: str) -> list[str]:
    """The places of a pipeline's own tables that exist, below its path."""
    pipeline = config.pipelines[name]
    if not isinstance(pipeline.sink, DeltaSettings):
        return []
    shapes = Log(config.log.path, config.log.storage).shapes().values()
    lake = Storage(pipeline.sink.path, pipeline.sink.storage)
    places = _places(pipeline, shapes)
    return [place for place in places if any(True for _ in walk(lake, place))]


def _places(pipeline: Pipeline, shapes: Iterable[Shape]) -> list[str]:
    """Where tables may be: under their names, or set aside for another of that name."""
    patterns = TablePatterns(pipeline.tables)
    targets = set()
    for (schema, table), relation in {(shape.home_name, shape.home) for shape in shapes}:
        if patterns.matches(schema, table):
            target = compile_rules(pipeline.rules, pipeline.routes, schema, table).target
            targets |= {target, name_aside(target, relation)}
    return sorted(map(table_path, targets))


def replay(
    spark: SparkSession,
    config: Config,
    name: str,
    start: Position | None = None,
    *,
    on_batch: Callable[[str, State], None] | None = None,
) -> State:
    """Build the target anew until it is current; from ``start`` on, on top of what it has."""
    storage = Storage(config.log.path, config.log.storage)
    with Lease(storage, name) as lease:
        _hold(config, name, start)
        StateFile(storage, name).drop()
        if start is None:
            start = _begin_anew(spark, config, name)
        run = PipelineRun(spark, config, name, start=start, lease=lease, on_batch=on_batch)
        return run.run(until_current=True)


def _begin_anew(spark: SparkSession, config: Config, name: str) -> Position | None:
    """Delete the target's tables; where to begin, if that is not the log's beginning."""
    sink = config.pipelines[name].sink
    if not isinstance(sink, DeltaSettings):
        return None
    _clear(spark, config, name, sink)
    cut = Log(config.log.path, config.log.storage).snapshot().complete_from > 0
    return have_read(config, name, sink) if cut else None


def _clear(spark: SparkSession, config: Config, name: str, sink: DeltaSettings) -> None:
    lake = Storage(sink.path, sink.storage)
    recover(spark, lake)
    for place in target_tables(config, name):
        remove(spark, lake, place)
    source = Log(config.log.path, config.log.storage).source
    Gone(lake, source_text(source)).forget()
