"""Layouts: how the text arrays of a table's rows are read, and what identifies a row.

A partition's rows come under its own relation id, with its own order of columns. They belong
to the root: its layout is theirs, and their arrays are put into its order, column by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from pyspark.sql import DataFrame
from pyspark.sql.types import DecimalType

from pgtide.config.unbounded_numeric import parse_unbounded_numeric
from pgtide.errors import ConfigError
from pgtide.shape import Column, Shape
from pgtide.spark.alignment import Alignment
from pgtide.spark.codecs import TEXT, Codec, codec_for
from pgtide.spark.sql_text import Sql, case, element, literal

ROW_OPS = ("insert", "update", "delete", "read")

TableName: TypeAlias = tuple[str, str]  # schema and table

Policy: TypeAlias = Literal["fail", "null", "text"]
"""What becomes of a value that its type cannot hold: an error that names column and position, not
the value; NULL; or every column of such a type is a string, so that it does not depend on the data.
"""
MARKER = "pgtide: unrepresentable value in"
NOT_SENT = "pgtide: value not sent in"


def check_policy(policy: str) -> None:
    """Refuse a word that is no policy: it would pass for one that is."""
    if policy not in get_args(Policy):
        raise ConfigError(
            f"on_unrepresentable cannot be {policy!r}",
            hint=f"Use one of {', '.join(get_args(Policy))}.",
        )


@dataclass(frozen=True)
class Layout:
    """The columns of a table for a stretch of the log."""

    shape: Shape  # of the root, when the rows are of partitions
    key_names: tuple[str, ...]  # columns that identify a row; empty for a table without a key
    policy: Policy = "null"
    unbounded: DecimalType | None = None  # what ``numeric`` without precision is; None: a string

    @classmethod
    def of(cls, shape: Shape, shapes: Mapping[int, Shape]) -> Layout:
        """The layout for rows of a shape; keys in the root's order, whatever a partition's is."""
        keys = {shape.columns[index].name for index in shape.keys}
        root = _root(shape, shapes)
        return cls(root, tuple(column.name for column in root.columns if column.name in keys))

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.shape.columns

    @property
    def table(self) -> TableName:
        return self.shape.schema, self.shape.table

    @cached_property
    def codecs(self) -> tuple[Codec, ...]:
        """One codec per column; a key is a text if Spark could not tell whether two are equal."""
        return tuple(map(self._codec, self.columns))

    def _codec(self, column: Column) -> Codec:
        codec = codec_for(column, self.unbounded)
        if column.name in self.key_names and not codec.comparable:
            return TEXT
        return codec if codec.total or self.policy != "text" else TEXT

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """Indexes of the key columns."""
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key_names)

    def under(self, policy: Policy) -> Layout:
        """The same columns, read under a policy."""
        return replace(self, policy=policy)

    def sized(self, unbounded_numeric: str) -> Layout:
        """The same columns, with the type that a setting gives to ``numeric`` without precision."""
        digits = parse_unbounded_numeric(unbounded_numeric)
        return replace(self, unbounded=None if digits is None else DecimalType(*digits))

    def typed(self, row: str, index: int) -> Sql:
        """A value of a row that is given as its array of texts; ``lsn`` and ``seq`` are beside."""
        codec, text = self.codecs[index], element(row, index)
        value = codec.decode(text)
        if self.policy != "fail" or codec.any_text:
            return value
        name = ".".join((*self.table, self.columns[index].name))
        refusal = case(f"{text} IS NOT NULL", _refusal(MARKER, name))
        return Sql(f"coalesce({value}, {refusal})")

    def key_values(self, row: str) -> list[Sql]:
        """The typed key of a row that is given as its array of texts."""
        return [self.typed(row, index) for index in self.keys]

    def align(self, frame: DataFrame, shapes: Iterable[Shape]) -> DataFrame:
        """Rows of several shapes, checked, with their arrays in the order of this layout."""
        return Alignment.to(self.shape, shapes).apply(frame)


def not_sent(table: str) -> Sql:
    """Ends the query: a value is needed that nothing has sent."""
    return _refusal(NOT_SENT, table)


def _refusal(marker: str, name: str) -> Sql:
    # As a position is written: users may ask for what was before it.
    where = "hex(shiftrightunsigned(lsn, 32)), '/', hex(lsn & 4294967295), ':', seq"
    return Sql(f"raise_error(concat({literal(f'{marker} {name} at ')}, {where}))")


def _root(shape: Shape, shapes: Mapping[int, Shape]) -> Shape:
    """The root's shape with the same columns, the nearest before; without one, what is known."""
    if not shape.root_oid:
        return shape
    columns = {(c.name, c.type_oid, c.typmod) for c in shape.columns}
    alike = [
        known
        for known in shapes.values()
        if known.oid == shape.root_oid
        and {(c.name, c.type_oid, c.typmod) for c in known.columns} == columns
    ]
    if alike:
        return min(alike, key=lambda known: (known.id > shape.id, abs(known.id - shape.id)))
    return Shape(
        oid=shape.root_oid,
        schema=shape.root_schema,
        table=shape.root_table,
        columns=shape.columns,
        replica_identity=shape.replica_identity,
        id=shape.id,
        since=shape.since,
    )
