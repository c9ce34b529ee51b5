"""Rows of texts as the log has them, and what rules make of them, in one query per test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import yaml
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from pgtide import oids
from pgtide.config.rules import Route, Rule
from pgtide.rules import Cell, TableRules, compile_rules

TYPES: dict[str, tuple[int, str]] = {
    "text": (oids.TEXT, "string"),
    "varchar": (oids.VARCHAR, "string"),
    "bpchar": (1042, "string"),
    "int4": (oids.INT4, "int"),
    "int8": (oids.INT8, "bigint"),
    "numeric": (oids.NUMERIC, "string"),
    "numeric(10,2)": (oids.NUMERIC, "decimal(10,2)"),
    "float4": (oids.FLOAT4, "float"),
    "float8": (oids.FLOAT8, "double"),
    "bool": (oids.BOOL, "boolean"),
    "date": (oids.DATE, "date"),
    "timestamp": (oids.TIMESTAMP, "timestamp_ntz"),
    "timestamptz": (oids.TIMESTAMPTZ, "timestamp"),
    "time": (oids.TIME, "string"),
    "uuid": (2950, "string"),
    "jsonb": (oids.JSONB, "string"),
}
"""Postgres type, and the Spark type that holds it."""

FIELDS: list[pa.Field[Any]] = [
    pa.field("n", pa.int32()),
    pa.field("op", pa.string()),
    pa.field("after", pa.list_(pa.string())),
    pa.field("unchanged", pa.list_(pa.int32())),
]
SCHEMA = pa.schema(FIELDS)

UNSENT = object()
"""In a row: the server did not send the value."""

Row = dict[str, Any]


class Bench:
    """Runs rules over rows of Postgres texts."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def run(
        self, rules: TableRules, columns: dict[str, str], rows: Sequence[Row]
    ) -> list[tuple[bool | None, dict[str, Any]]]:
        """For each row whether it is kept, and its typed values; UNSENT where not sent."""
        frame, cells = self.cells(columns, rows)
        op = F.col("op")
        kept = rules.keep(cells, op)
        out = rules.apply(cells, op)
        shown = [F.col("n"), (F.lit(True) if kept is None else kept).alias("keep")]
        for at, cell in enumerate(out):
            shown.append(cell.value.alias(f"v{at}"))
            shown.append((F.lit(True) if cell.sent is None else cell.sent).alias(f"s{at}"))
        # Sorted here: without a shuffle Spark answers from the plan, in milliseconds.
        found = sorted(frame.select(shown).collect(), key=lambda row: row["n"])
        return [
            (
                row["keep"],
                {
                    cell.name: row[f"v{at}"] if row[f"s{at}"] else UNSENT
                    for at, cell in enumerate(out)
                },
            )
            for row in found
        ]

    def kept(self, rules: TableRules, columns: dict[str, str], rows: Sequence[Row]) -> list[Any]:
        return [keep for keep, _ in self.run(rules, columns, rows)]

    def values(
        self, rules: TableRules, columns: dict[str, str], rows: Sequence[Row]
    ) -> list[dict[str, Any]]:
        return [values for _, values in self.run(rules, columns, rows)]

    def cells(self, columns: dict[str, str], rows: Sequence[Row]) -> tuple[DataFrame, list[Cell]]:
        """A frame with the rows, and its cells; ``op`` is insert unless a row says otherwise."""
        data = []
        for n, row in enumerate(rows):
            texts = [row.get(name) for name in columns]
            unsent = [at for at, text in enumerate(texts) if text is UNSENT]
            clean = [None if text is UNSENT else text for text in texts]
            data.append((n, row.get("op", "insert"), clean, unsent))
        rows_by_name = [dict(zip(SCHEMA.names, values, strict=True)) for values in data]
        # From Arrow: a frame of Python objects would start a Python worker, which takes seconds.
        frame = self.spark.createDataFrame(pa.Table.from_pylist(rows_by_name, schema=SCHEMA))
        return frame, [_cell(at, name, columns[name]) for at, name in enumerate(columns)]


def _cell(at: int, name: str, kind: str) -> Cell:
    oid, spark_type = TYPES[kind]
    text = F.get("after", F.lit(at))
    sent = ~F.array_contains("unchanged", F.lit(at))
    type_ = t._parse_datatype_string(spark_type)
    return Cell(name, type_, _typed(text, spark_type), text, sent, oid, attnum=at + 1)


def _typed(text: Column, spark_type: str) -> Column:
    if spark_type in ("string", "boolean"):
        return text if spark_type == "string" else text == "t"
    return text.try_cast(spark_type)


def rules_of(text: str, routes: str = "[]", table: str = "public.users") -> TableRules:
    """Rules written as YAML, compiled for a table."""
    schema, name = table.split(".")
    rules = [Rule.model_validate(item) for item in yaml.safe_load(text)]
    paths = [Route.model_validate(item) for item in yaml.safe_load(routes)]
    return compile_rules(rules, paths, schema, name)
