"""Pivot rows: one row per field that a change concerns.

The columns, in this order: the key's, ``change_field``, ``old_value``, ``new_value`` (both as
Postgres prints them), ``datetime_created``, ``datetime_updated``, ``datetime_deleted``,
``datetime_inserted`` and ``crud_type``: ``c``, ``u`` or ``d``. Every row has all of them; of
the first three times only the one that is about its kind of change is set. Rows of a snapshot
are no changes, and a TRUNCATE tells no values: neither has pivot rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pgtide.config.sinks import PivotSettings
from pgtide.errors import ConfigError, PipelineError
from pgtide.postgres.names import identity_full
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.shape import Shape
from pgtide.spark.cells import CellReader
from pgtide.spark.column_names import target_names
from pgtide.spark.layout import Layout
from pgtide.spark.sql_text import quoted

TEXTS = ("change_field", "old_value", "new_value")
TIMES = ("datetime_created", "datetime_updated", "datetime_deleted", "datetime_inserted")
CRUD_TYPE = "crud_type"
RESERVED = (*TEXTS, *TIMES, CRUD_TYPE)
_FIELD = "_pgtide_field"  # what is told of a field, beside key columns of any name
_TIME_SETTINGS = "created or updated"
_LETTERS = {"insert": "c", "update": "u", "delete": "d"}


def pivot_rows(
    rows: DataFrame,
    layout: Layout,
    rules: TableRules,
    reader: CellReader,
    settings: PivotSettings,
    carried: Mapping[str, str] | None = None,
) -> DataFrame:
    """Pivot rows of raw log rows in this layout; see ``require_old_rows``.

    ``carried``: further columns, each with the column of the log that it has.
    """
    return _Pivot(layout, rules, reader, settings).rows(rows, carried or {})


def pivot_schema(
    layout: Layout, rules: TableRules, reader: CellReader, settings: PivotSettings
) -> StructType:
    """The columns of pivot rows; a key column's metadata has its ``attnum``."""
    pivot = _Pivot(layout, rules, reader, settings)
    fields = [
        StructField(name, cell.type, metadata={"attnum": cell.attnum}) for name, cell in pivot.key
    ]
    fields += [StructField(name, StringType()) for name in TEXTS]
    fields += [StructField(name, TimestampType()) for name in TIMES]
    return StructType([*fields, StructField(CRUD_TYPE, StringType())])


def changed_rows(rows: DataFrame) -> DataFrame:
    """Of rows of the log those that have pivot rows; of a delete the old row is the row."""
    changes = rows.filter(F.col("op").isin(*_LETTERS))
    return changes.withColumns({"after": F.coalesce("after", "before")})


def typed_columns(
    layout: Layout, rules: TableRules, reader: CellReader, settings: PivotSettings
) -> list[str]:
    """The source's columns whose values are not written as texts: the key's, and times."""
    numbers = {cell.attnum for cell in _Pivot(layout, rules, reader, settings).typed()}
    return [column.name for column in layout.columns if column.attnum in numbers]


def require_old_rows(shapes: Iterable[Shape]) -> None:
    """Refuse tables whose updates and deletes do not tell the old row.

    ``shapes`` are those of rows that were updated or deleted.
    """
    for shape in shapes:
        if shape.replica_identity != "f":
            raise PipelineError(
                "a pivot needs the old rows of its table",
                detail=f"{shape.name} does not send them: it has no REPLICA IDENTITY FULL. "
                "Updates and deletes that were logged before it has cannot be told.",
                hint=identity_full(shape.schema, shape.table),
            )


@dataclass(frozen=True)
class _Field:
    name: str
    old: Cell
    new: Cell
    is_key: bool


class _Pivot:
    def __init__(
        self, layout: Layout, rules: TableRules, reader: CellReader, settings: PivotSettings
    ) -> None:
        self._layout = layout
        self._rules = rules
        self._settings = settings
        op = F.col("op")
        everything = tuple(range(len(layout.columns)))
        self._raw = reader.after(everything)
        self._new = self._timed = rules.apply(self._raw, op)
        if reader.policy == "text":
            # The pivot's times are no texts, whatever the column that has them is elsewhere.
            self._timed = rules.apply(replace(reader, policy="fail").after(everything), op)
        self._old = rules.apply(reader.before(), op)

    @property
    def key(self) -> list[tuple[str, Cell]]:
        """Key columns of the pivot: names that none of its own has, and cells."""
        cells = [self._cell(name, "key") for name in self._key_names()]
        return list(zip(target_names(cells, RESERVED), cells, strict=True))

    def rows(self, rows: DataFrame, carried: Mapping[str, str]) -> DataFrame:
        op = F.col("op")
        rows = changed_rows(rows).filter(self._rules.may_pass(self._raw, op))
        fields = F.array_compact(F.array(*[self._told(field) for field in self._fields()]))
        times = self._times()
        letters = F.create_map(*[F.lit(part) for pair in _LETTERS.items() for part in pair])
        return rows.select(
            *[cell.value.alias(name) for name, cell in self.key],
            F.explode(fields).alias(_FIELD),
            *[times[name].alias(name) for name in TIMES],
            letters[op].alias(CRUD_TYPE),
            *[F.col(logged).alias(name) for name, logged in carried.items()],
        ).select(
            *[quoted(name) for name, _ in self.key],
            f"{_FIELD}.*",
            *map(quoted, (*TIMES, CRUD_TYPE, *carried)),
        )

    def typed(self) -> list[Cell]:
        """The cells of which the value is written."""
        times = [name for name in (self._settings.created, self._settings.updated) if name]
        return [cell for _, cell in self.key] + [self._time_cell(name) for name in times]

    def _key_names(self) -> list[str]:
        """Names of the key columns after the rules."""
        if self._settings.key:
            return self._settings.key
        if not self._layout.key_names:
            raise ConfigError(
                f"{'.'.join(self._layout.table)} has no key",
                hint="Name the columns that tell whose change it is in sink.pivot.key.",
            )
        left = self._rules.names(column.name for column in self._layout.columns)
        gone = [name for name in self._layout.key_names if name not in left]
        if gone:
            raise ConfigError(
                f"rules leave out the key column {gone[0]} of {'.'.join(self._layout.table)}",
                hint="Keep it, or name other columns in sink.pivot.key.",
            )
        return [left[name] for name in self._layout.key_names]

    def _fields(self) -> list[_Field]:
        settings, keys = self._settings, self._key_names()
        aside = {settings.created, settings.updated}
        names = settings.columns or [c.name for c in self._new if c.name not in aside]
        fields = []
        for name in names:
            new, old = self._cell(name, "columns"), self._cell(name, "columns", self._old)
            is_key = name in keys and not settings.columns
            fields.append(_Field(name, old, new, is_key))
        return fields

    def _told(self, field: _Field) -> Column:
        """The row for a field, NULL where there is none."""
        op, old = F.col("op"), field.old.text
        new = field.new.text
        if field.new.sent is not None:
            new = F.when(field.new.sent, new).otherwise(old)
        told = F.struct(
            F.lit(field.name).alias("change_field"),
            F.when(op != "insert", old).alias("old_value"),
            F.when(op != "delete", new).alias("new_value"),
        )
        changed = (op == "update") & ~old.eqNullSafe(new)
        if field.is_key:
            return F.when(changed, told)
        return told if self._settings.fields == "all" else F.when((op != "update") | changed, told)

    def _times(self) -> dict[str, Column]:
        op = F.col("op")
        created, updated = self._time(self._settings.created), self._time(self._settings.updated)
        return {
            "datetime_created": F.when(op == "insert", created),
            "datetime_updated": F.when(op == "update", updated),
            "datetime_deleted": F.when(op == "delete", F.col("committed_at")),
            "datetime_inserted": F.current_timestamp(),
        }

    def _time(self, name: str | None) -> Column:
        if name is None:
            return F.col("committed_at")
        cell = self._time_cell(name)
        return _instant(cell.value, cell.type, name)

    def _time_cell(self, name: str) -> Cell:
        return self._cell(name, _TIME_SETTINGS, self._timed)

    def _cell(self, name: str, setting: str, cells: Sequence[Cell] | None = None) -> Cell:
        for cell in self._new if cells is None else cells:
            if cell.name == name:
                return cell
        raise ConfigError(
            f"{'.'.join(self._layout.table)} has no column {name}",
            hint=f"Correct sink.pivot.{setting}, or select other tables.",
        )


def _instant(value: Column, kind: DataType, name: str) -> Column:
    """A time as an instant; without a time zone it is taken as UTC, whatever the session's."""
    if isinstance(kind, TimestampType):
        return value
    if isinstance(kind, TimestampNTZType):
        return F.concat(value.cast("string"), F.lit("Z")).cast(TimestampType())
    if isinstance(kind, DateType):
        return F.concat(value.cast("string"), F.lit(" 00:00:00Z")).cast(TimestampType())
    raise ConfigError(f"column {name} is no time", hint="Name a timestamp or date column.")
