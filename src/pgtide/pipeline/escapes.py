"""Renames that would take a table or a column out of what a pipeline's rules hide.

Rules find both by their names. Values that were masked or left out would come as they are, and
rows that a filter kept out would come too: that stops the pipeline, or parks the table. A mirror
in Postgres refuses to replay the command; one that it leaves out is refused as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgtide.config.sinks import PostgresSettings
from pgtide.errors import PipelineError
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.parallel import Failure
from pgtide.pipeline.relation_histories import Look
from pgtide.pipeline.steps import Reshaped, TableWork
from pgtide.position import Position
from pgtide.rules.hiding import Hiding


def escapes(batch: Batch) -> list[Failure]:
    """The tables of a batch to which that happens."""
    sink = batch.settings.sink
    if not batch.settings.rules or (isinstance(sink, PostgresSettings) and sink.mode == "mirror"):
        return []
    first = ((work, next(_of_work(batch, work), None)) for work in batch.work)
    return [Failure(work, error) for work, error in first if error is not None]


def refuse_escapes(batch: Batch, commands: Collection[Position]) -> None:
    """Stop where one of some commands does that: those which a mirror does not replay."""
    for work in batch.work if batch.settings.rules and commands else ():
        for error in _of_work(batch, work, commands):
            raise error


def _of_work(
    batch: Batch, work: TableWork, commands: Collection[Position] | None = None
) -> Iterator[PipelineError]:
    for step in work.steps:
        if isinstance(step, Reshaped) and (commands is None or step.at in commands):
            yield from _escaping(batch, step)


def _escaping(batch: Batch, step: Reshaped) -> Iterator[PipelineError]:
    before = step.before
    names = {column.attnum: column.name for column in step.layout.columns}
    if before is None or (before.home, before.columns) == (step.table, names):
        return  # one that was made had no other name
    old = Hiding.of(batch.rules(before.home), before.columns.values())
    new = Hiding.of(batch.rules(step.table), names.values())
    for attnum, name in before.columns.items():
        now = names.get(attnum) if attnum is not None else None
        if now is None:
            continue
        if name in old.hidden and now not in new.known:
            yield _column_error(batch, step, before, name, now)
        if name in old.decisive and now not in new.decisive:
            yield _decisive_error(batch, step, before, name, now)
    if old.filtered and not new.filtered:
        yield _filter_error(batch, step, before)


def _column_error(batch: Batch, step: Reshaped, before: Look, old: str, new: str) -> PipelineError:
    told, table = f"{'.'.join(before.home)}.{old}", ".".join(step.table)
    ways = (
        f"Repeat for {table}.{new} the rules that say {told}, or leave the column out: "
        f"{{table: {table}, exclude: [{new}], optional: true}}; either way all of them want "
        "optional: true."
    )
    what = f"column {told} became {table}.{new}, of which no rule says anything."
    return _error(batch, step, what, ways if before.home == step.table else _of_table(step))


def _decisive_error(
    batch: Batch, step: Reshaped, before: Look, old: str, new: str
) -> PipelineError:
    told, table = f"{'.'.join(before.home)}.{old}", ".".join(step.table)
    ways = (
        f"Repeat for {table}.{new} the filters that say {told}, both with optional: true; or take "
        "them out of the rules."
    )
    what = f"column {told} became {table}.{new}, by which nothing filters rows."
    return _error(batch, step, what, ways if before.home == step.table else _of_table(step))


def _filter_error(batch: Batch, step: Reshaped, before: Look) -> PipelineError:
    what = f"{'.'.join(before.home)} became {'.'.join(step.table)}, of which no SQL filters rows."
    return _error(batch, step, what, _of_table(step))


def _of_table(step: Reshaped) -> str:
    name = ".".join(step.table)
    return f"Let the rules fit {name} too, or take that table out of the pipeline's tables."


def _error(batch: Batch, step: Reshaped, what: str, ways: str) -> PipelineError:
    command = "run" if batch.settings.on_error == "stop" else "resume"
    return PipelineError(
        "a rename would show what the pipeline's rules hide",
        detail=f"At {step.at} {what}",
        hint=f"{ways} Then: pgtide {command} --pipeline {batch.scope.pipeline}",
    )
