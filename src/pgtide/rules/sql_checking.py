"""The lines of ``pgtide check`` about SQL of rules, and about patterns that only Java can judge:
what Spark says of them, without any rows.

The rules are compiled for the tables as they are now, as their pipeline would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import functions as F

from pgtide.config import Pipeline, TablePatterns
from pgtide.errors import ConfigError
from pgtide.postgres.verdict import Check, fail
from pgtide.rules.checking import needs_spark
from pgtide.rules.compiling import compile_rules
from pgtide.rules.sql import asking_once
from pgtide.shape import Shape
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout

_TOLD_HERE = ("its SQL", "Java does not compile")


def check_sql(pipelines: dict[str, Pipeline], shapes: Sequence[Shape]) -> Iterator[Check]:
    """One line per table for which the rules mean nothing; a Spark session has to run.

    Tables whose columns have the same types are one question to Spark.
    """
    with asking_once():
        errors = [
            (name, error)
            for name, pipeline in pipelines.items()
            for error in _errors(pipeline, shapes)
        ]
    for name, error in errors:
        detail = f": {error.detail}" if error.detail else ""
        yield fail("rules", f"{name}: {error.message}{detail}", error.hint)


def _errors(pipeline: Pipeline, shapes: Sequence[Shape]) -> Iterator[ConfigError]:
    selected = TablePatterns(pipeline.tables)
    asked = [TablePatterns([rule.table]) for rule in pipeline.rules if needs_spark(rule)]
    by_id = dict(enumerate(shapes, start=1))
    for shape in shapes:
        table = shape.schema, shape.table
        # A partition's rows are its root's, by name and columns.
        if shape.root_oid or not selected.matches(*table):
            continue
        try:
            if any(patterns.matches(*table) for patterns in asked):
                _compile(pipeline, Layout.of(shape, by_id))
        except ConfigError as error:
            if any(
                word in error.message for word in _TOLD_HERE
            ):  # others are told with the rules, which need no Spark
                yield error


def _compile(pipeline: Pipeline, layout: Layout) -> None:
    """Take cells through all rules. Nothing reads them, so all have the same value: making those
    that a pipeline reads takes longer than all the rest."""
    rules = compile_rules(pipeline.rules, pipeline.routes, *layout.table)
    reader, value = CellReader.of(layout, pipeline), F.lit(None)
    rules.keep(reader.described(value), F.col("op"))
