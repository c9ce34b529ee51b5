"""Rows of the log as typed rows of changes, in Arrow: ``changes()`` without Spark's expressions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pgtide.errors import LogError, Unrepresentable
from pgtide.position import Lsn, Position
from pgtide.spark.alignment import Alignment
from pgtide.spark.arrow_values import Array, decode, holds_oids
from pgtide.spark.cells import CellReader
from pgtide.spark.layout import MARKER, Layout, Policy

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

PLAIN = ("op", "lsn", "seq", "xid", "committed_at")  # as they are in the log
SIDES = ("before", "after")

Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TypedColumn:
    """A column of the table, as far as its values are concerned."""

    name: str
    type: DataType
    oid: bool


@dataclass(frozen=True)
class ChangeRows:
    """Converts rows of one table; plain data, so that it can be sent to other processes."""

    table: str
    columns: tuple[TypedColumn, ...]
    alignment: Alignment
    policy: Policy

    @classmethod
    def of(cls, layout: Layout, alignment: Alignment, policy: Policy) -> ChangeRows:
        # A copy, because a layout keeps its codecs, and those are not to be sent anywhere.
        reader = CellReader(replace(layout), policy)
        columns = tuple(
            TypedColumn(column.name, reader.codec(index).spark_type, holds_oids(column))
            for index, column in enumerate(layout.columns)
        )
        return cls(".".join(layout.table), columns, alignment, policy)

    @property
    def schema(self) -> StructType:
        """The columns of ``changes()``."""
        row = StructType([StructField(column.name, column.type) for column in self.columns])
        types = (StringType(), LongType(), LongType(), LongType(), TimestampType())
        fields = [StructField(name, kind) for name, kind in zip(PLAIN, types, strict=True)]
        fields += [StructField(side, row) for side in SIDES]
        return StructType([*fields, StructField("unchanged", ArrayType(StringType()))])

    def convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the log, all of this table's shapes, as Spark expects them of a source."""
        schema = to_arrow_schema(self.schema)
        shapes: Ids = rows.column("shape").to_numpy(zero_copy_only=False)
        sides = [self._side(rows, side, shapes, schema.field(side).type) for side in SIDES]
        unchanged = self._unchanged(rows.column("unchanged"), shapes)
        plain = [rows.column(name) for name in PLAIN]
        return pa.RecordBatch.from_arrays([*plain, *sides, unchanged], schema=schema)

    def _side(self, rows: pa.RecordBatch, side: str, shapes: Ids, kind: Any) -> Array:
        lists = rows.column(side)
        self._check_widths(rows, lists, shapes)
        values = []
        for column, texts in zip(self.columns, self._texts(lists, shapes), strict=True):
            typed = decode(texts, column.type, oid=column.oid)
            if self.policy == "fail" and typed.null_count > texts.null_count:
                self._refuse(rows, column, pc.and_(typed.is_null(), texts.is_valid()))
            values.append(typed)
        return pa.StructArray.from_arrays(values, fields=list(kind), mask=lists.is_null())

    def _texts(self, lists: Any, shapes: Ids) -> Iterator[Array]:
        """Each column's texts, in the order of the one shape that all are aligned to."""
        begins = lists.offsets.to_numpy()[:-1].astype(np.int64)
        missing: Flags = lists.is_null().to_numpy(zero_copy_only=False)
        moved = {
            shape: (shapes == shape, places)
            for shape, places in self.alignment.places.items()
            if shape in shapes
        }
        for index in range(len(self.columns)):
            at, absent = begins + index, missing.copy()
            added: list[tuple[Flags, str]] = []
            for here, places in moved.values():
                place = places[index]
                if isinstance(place, int):
                    at[here] = begins[here] + place
                    continue
                absent |= here
                if place is not None:
                    added.append((here & ~missing, place))
            texts = lists.values.take(pa.array(at, mask=absent))
            for rows, text in added:
                texts = pc.if_else(pa.array(rows), text, texts)
            yield texts

    def _unchanged(self, lists: Any, shapes: Ids) -> Array:
        """Names for indexes; those of moved columns by their new place, in its order."""
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(lists)), lengths)
        indexes = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        order = np.arange(len(indexes))
        for shape, places in self.alignment.places.items():
            here = shapes[rows] == shape
            if here.any():
                new = np.full(self.alignment.widths[shape], -1)
                for index, old in enumerate(places):
                    if isinstance(old, int):
                        new[old] = index
                order[here] = indexes[here] = new[indexes[here]]
        order = np.lexsort((order, rows))
        order = order[indexes[order] >= 0]
        names = pa.array([column.name for column in self.columns], pa.string())
        counts = np.bincount(rows[order], minlength=len(lists))
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        return pa.ListArray.from_arrays(
            offsets,
            names.take(pa.array(indexes[order])),
            type=pa.list_(pa.field("element", pa.string())),
            mask=lists.is_null(),
        )

    def _check_widths(self, rows: pa.RecordBatch, lists: Any, shapes: Ids) -> None:
        widths = pc.list_value_length(lists)
        ids, which = np.unique(shapes, return_inverse=True)
        known = np.array([self.alignment.widths[shape] for shape in ids], np.int32)
        expected = pa.array(known[which])
        wrong = pc.fill_null(pc.not_equal(widths, expected), False)
        if pc.any(wrong).as_py():
            raise LogError(
                "a row of the log does not fit its shape",
                detail=f"It is a row of {self.table}, at {_first(rows, wrong)}.",
                hint="The log is damaged: restore it from a backup or start a new one.",
            )

    def _refuse(self, rows: pa.RecordBatch, column: TypedColumn, bad: Array) -> None:
        at = _first(rows, bad)
        raise Unrepresentable(
            f"{MARKER} {self.table}.{column.name} at {at}",
            detail=f"{column.type.simpleString()} cannot hold it.",
            hint='Set the option on_unrepresentable to "null" or "text".',
        )


def _first(rows: pa.RecordBatch, found: Array) -> Position:
    row = pc.index(found, True).as_py()
    return Position(Lsn(rows.column("lsn")[row].as_py()), rows.column("seq")[row].as_py())
