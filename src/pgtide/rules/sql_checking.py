"""The lines of ``pgtide check`` about SQL of rules: what Spark says of it, without any rows.

The rules are compiled for the tables as they are now, as their pipeline would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import functions as F

from pgtide.config import Pipeline, TablePatterns
from pgtide.errors import ConfigError
from pgtide.postgres.verdict import Check, fail
from pgtide.rules.checking import has_sql
from pgtide.rules.compiling import compile_rules
from pgtide.shape import Shape
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import Layout


def check_sql(pipelines: dict[str, Pipeline], shapes: Sequence[Shape]) -> Iterator[Check]:
    """One line per table for which the rules mean nothing; a Spark session has to run."""
    by_id = dict(enumerate(shapes, start=1))
    for name, pipeline in pipelines.items():
        patterns = TablePatterns(pipeline.tables)
        for shape in shapes if has_sql(pipeline) else ():
            # A partition's rows are its root's, by name and columns.
            if not shape.root_oid and patterns.matches(shape.schema, shape.table):
                try:
                    _compile(pipeline, Layout.of(shape, by_id))
                except ConfigError as error:
                    if "SQL" not in error.message:
                        continue  # told with the rules, which need no Spark for it
                    detail = f": {error.detail}" if error.detail else ""
                    yield fail("rules", f"{name}: {error.message}{detail}", error.hint)


def _compile(pipeline: Pipeline, layout: Layout) -> None:
    rules = compile_rules(pipeline.rules, pipeline.routes, *layout.table)
    cells = CellReader(layout, pipeline.on_unrepresentable).after()
    rules.keep(cells, F.col("op"))
    rules.apply(cells, F.col("op"))
