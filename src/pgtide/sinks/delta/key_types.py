"""Key columns that would get another type than they have in the table.

A setting may want that, or a column that is in the key only now: keys of some types are kept as
texts. Columns outside of the key are set aside then, and new ones begin. Rows are found by their
key: without it those that are there would stay for ever, beside what they became.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgtide.errors import TargetError
from pgtide.shape import Shape
from pgtide.sinks.delta.columns import TargetColumn, existing_columns
from pgtide.sinks.delta.reshape import widens
from pgtide.sinks.delta.target import Target
from pgtide.spark.layout import Layout


def refuse_other_keys(
    pipeline: str,
    target: Target,
    wanted: Sequence[TargetColumn],
    layout: Layout,
    shapes: Iterable[Shape],
) -> None:
    """Refuse another type for a key column that had one type at the source all the time."""
    keys = {column.attnum for column in layout.columns if column.name in layout.key_names}
    types = {column.attnum: column.type for column in wanted}
    mine = [shape for shape in shapes if shape.oid == layout.shape.oid]
    for column in existing_columns(target.schema):
        if column.attnum is None or column.attnum not in keys or column.attnum not in types:
            continue
        kind = types[column.attnum]
        if column.type == kind or widens(column.type, kind) or _changed(mine, column.attnum):
            continue
        raise TargetError(
            "a key column would get another type",
            detail=f"{column.name} of {target.path} is {column.type.simpleString()}, and is to "
            f"be {kind.simpleString()}: rows that are there could not be found any more.",
            hint="If unbounded_numeric or on_unrepresentable was changed, set it back; if the "
            f"column is in the key only now, build anew: pgtide replay --pipeline {pipeline}",
        )


def _changed(shapes: Iterable[Shape], attnum: int) -> bool:
    """Whether the source itself has given a column another type."""
    columns = [column for shape in shapes for column in shape.columns if column.attnum == attnum]
    return len({(c.type_oid, c.typmod, c.base_oid, c.base_typmod) for c in columns}) > 1
