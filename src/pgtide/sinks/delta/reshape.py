"""Following a schema change: the difference between a table as it is and as it should be.

Every statement is derived from the table itself, so a crash between two of them costs
nothing. Columns are told apart by attnum. A column whose type cannot be widened to the new
one is set aside under a name that tells its old type, and a new column takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
)

from pgtide.sinks.delta.columns import TargetColumn, existing_columns
from pgtide.sinks.delta.target import Target
from pgtide.spark.sql_text import quoted, type_name

_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ByteType: (ShortType, IntegerType, LongType, DoubleType),
    ShortType: (IntegerType, LongType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
    DateType: (TimestampNTZType,),
}
ASIDE = "pgtide set aside"


def reshape(target: Target, wanted: Sequence[TargetColumn], *, drop: bool) -> None:
    """Make the table's columns those that are wanted; pgtide's own are left alone."""
    _Reshaping(target, wanted).run(drop)


class _Reshaping:
    def __init__(self, target: Target, wanted: Sequence[TargetColumn]) -> None:
        self._target = target
        self._wanted = wanted

    def run(self, drop: bool) -> None:
        self._target.enable_types(self._wanted)
        self._set_aside_or_drop(drop)
        self._widen_or_set_aside()
        self._make_room()
        self._rename()
        self._add()

    def _now(self) -> list[TargetColumn]:
        return existing_columns(self._target.schema)

    def _alter(self, clause: str) -> None:
        self._target.spark.sql(f"ALTER TABLE {self._target.sql} {clause}")

    def _set_aside_or_drop(self, drop: bool) -> None:
        attnums = {column.attnum for column in self._wanted}
        for column in self._now():
            if column.attnum is None or column.attnum in attnums:
                continue
            if drop:
                self._alter(f"DROP COLUMN {quoted(column.name)}")
            else:
                self._set_aside(column)

    def _set_aside(self, column: TargetColumn) -> None:
        note = f"{ASIDE}, was attnum {column.attnum}"
        self._alter(f"ALTER COLUMN {quoted(column.name)} COMMENT '{note}'")

    def _widen_or_set_aside(self) -> None:
        for column, wish in self._pairs():
            if column.type == wish.type:
                continue
            if widens(column.type, wish.type):
                self._target.set_properties({"delta.enableTypeWidening": "true"})
                name, kind = quoted(column.name), type_name(wish.type)
                self._alter(f"ALTER COLUMN {name} TYPE {kind}")
            else:
                self._set_aside(column)

    def _pairs(self) -> list[tuple[TargetColumn, TargetColumn]]:
        """Columns that are there, each with what it should be."""
        by_attnum = {wish.attnum: wish for wish in self._wanted if wish.attnum is not None}
        by_name = {wish.name.lower(): wish for wish in self._wanted if wish.attnum is None}
        pairs = []
        for column in self._now():
            if column.attnum is not None:
                wish = by_attnum.get(column.attnum)
            else:
                wish = by_name.get(column.name.lower())
            if wish is not None:
                pairs.append((column, wish))
        return pairs

    def _make_room(self) -> None:
        """Move columns that hold a name which another column is to have."""
        holders = {column.name: wish for column, wish in self._pairs()}
        names = {wish.name.lower() for wish in self._wanted}
        taken = {column.name.lower() for column in self._now()} | names
        for column in self._now():
            wish = holders.get(column.name)
            if column.name.lower() not in names or (wish and wish.name == column.name):
                continue
            if wish is None and column.attnum is None and column.name.startswith("_pgtide_"):
                continue
            aside = column.name if wish is None else f"_pgtide_attnum_{column.attnum}"
            free = _free_name(f"{aside}__{_word(column.type)}" if wish is None else aside, taken)
            taken.add(free.lower())
            self._alter(f"RENAME COLUMN {quoted(column.name)} TO {quoted(free)}")

    def _rename(self) -> None:
        for column, wish in self._pairs():
            if column.name != wish.name:
                self._alter(f"RENAME COLUMN {quoted(column.name)} TO {quoted(wish.name)}")

    def _add(self) -> None:
        there = {column.name.lower() for column in self._now()}
        for wish in self._wanted:
            if wish.name.lower() not in there:
                comment = f" COMMENT '{wish.comment}'" if wish.comment else ""
                self._alter(f"ADD COLUMNS ({quoted(wish.name)} {type_name(wish.type)}{comment})")


def widens(old: DataType, new: DataType) -> bool:
    """Whether Delta can read old values as the new type."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return type(new) in _WIDER.get(type(old), ())


def _word(kind: DataType) -> str:
    return "".join(char if char.isalnum() else "_" for char in kind.simpleString()).strip("_")


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free.lower() in taken:
        number += 1
        free = f"{name}_{number}"
    return free
