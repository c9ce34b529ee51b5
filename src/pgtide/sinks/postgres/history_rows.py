"""Events on their way into histories, as lines for stages. Python sees lines only.

Values stay Postgres texts. A row has the new row's, of a delete those of the old row that were
sent; what was not sent is NULL and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide import oids, shape
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Rows
from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.rules.cells import Cell
from pgtide.sinks.delta.columns import COMMITTED_AT, LSN, RELATION, SEQ
from pgtide.sinks.delta.history import BEFORE, OP, UNCHANGED, XID
from pgtide.sinks.postgres.history_columns import OWN, HistoryColumn, free_name
from pgtide.sinks.postgres.history_tables import HistoryTable
from pgtide.sinks.postgres.history_types import (
    Told,
    ValueType,
    computed_type,
    type_of,
)
from pgtide.sinks.postgres.keyed_state import STATE, copy_text
from pgtide.sinks.postgres.staged_rows import as_lines
from pgtide.sinks.postgres.stages import Stage
from pgtide.sinks.postgres.statements import Chosen, quoted
from pgtide.spark.alignment import of_shapes
from pgtide.spark.cells import CellReader
from pgtide.spark.compaction import Traits
from pgtide.spark.identity import left_out, with_old_rows
from pgtide.spark.layout import Layout
from pgtide.spark.positions import at_or_after, at_or_before

_ARRAY_OF_TEXTS = 1009
_STAGED = {
    OP: oids.TEXT,
    XID: oids.INT8,
    COMMITTED_AT: oids.INT8,
    RELATION: oids.INT8,
    UNCHANGED: _ARRAY_OF_TEXTS,
    BEFORE: oids.JSONB,
}
"""What a stage has before the values; it has positions anyway. Times are microseconds."""
_NULL = r"\N"


@dataclass(frozen=True)
class HistoryLayout:
    """Rows of one layout, and the columns that they have in a history."""

    batch: Batch
    layout: Layout
    types: Mapping[Told, ValueType]

    @cached_property
    def columns(self) -> list[HistoryColumn]:
        """All columns of the table."""
        own = [HistoryColumn(name, kind) for name, kind in OWN.items()]
        if not self.parted:
            own = [column for column in own if column.name != RELATION]
        cells = zip(self._cells, self.names, self._types, strict=True)
        return [*own, *(HistoryColumn(n, k.here, k.source, c.attnum) for c, n, k in cells)]

    @cached_property
    def parted(self) -> bool:
        """Whether rows may be of partitions."""
        relation = self.layout.shape.oid
        return any(known.root_oid == relation for known in self.batch.shapes.values())

    @cached_property
    def names(self) -> list[str]:
        """What columns are called, as the rules leave them; pgtide's own names are taken."""
        taken, names = set(OWN), []
        for cell in self._cells:
            names.append(free_name(cell.name, "", taken))
            taken.add(names[-1])
        return names

    @cached_property
    def stage(self) -> Stage:
        names = {**OWN, COMMITTED_AT: "bigint"}
        own = [shape.Column(name, oid, type_name=names[name]) for name, oid in _STAGED.items()]
        # A type that not every server has is text until a row is where it belongs.
        values = [
            shape.Column(name, kind.oid, type_name=kind.here if kind.oid != oids.TEXT else "text")
            for name, kind in zip(self.names, self._types, strict=True)
        ]
        keys = tuple(len(own) + at for at, cell in enumerate(self._cells) if cell.key)
        scope, number = self.batch.scope.name, self.layout.shape.id
        return Stage(scope, number, (*own, *values), keys)

    def insert(
        self, table: HistoryTable, loads: Sequence[int], low: Position, high: Position
    ) -> str:
        """SQL: takes the events between two positions, both included, from the stage."""
        values = {LSN: "'0/0'::pg_lsn + s.lsn", SEQ: "s.seq"}
        for index, column in enumerate(self.stage.columns):
            if column.name != RELATION or self.parted:
                values[column.name] = _unstaged(f"s.v{index}", column, table.types[column.name])
        return (
            f"INSERT INTO {table.name} ({', '.join(map(quoted, values))})"
            f" SELECT {', '.join(values.values())} FROM {self.stage.name} s"
            f" WHERE {self.chosen(loads, low, high)}"
        )

    def chosen(self, loads: Sequence[int], low: Position, high: Position) -> str:
        """SQL: which rows of the stage those are."""
        first, last = (f"({int(at.lsn)}, {at.seq})" for at in (low, high))
        at = f"(s.lsn, s.seq) >= {first} AND (s.lsn, s.seq) <= {last}"
        return f"{Chosen(loads).of(self.stage)} AND {at}"

    @cached_property
    def rules(self) -> TableRules:
        return self.batch.rules(self.layout.table)

    @cached_property
    def reader(self) -> CellReader:
        return CellReader(self.layout.sized(self.batch.settings.unbounded_numeric))

    @cached_property
    def _cells(self) -> list[Cell]:
        return self.rules.apply(self.reader.after(), F.col("op"))

    @cached_property
    def _types(self) -> list[ValueType]:
        known = {column.name: column for column in self.layout.columns}
        changed = self.rules.transformed(known)
        origins = {now: known[old] for old, now in self.rules.names(known).items()}
        return [
            computed_type(cell.type)
            if origins[cell.name].name in changed
            else type_of(origins[cell.name], self.types)
            for cell in self._cells
        ]


def lines(steps: Iterable[tuple[HistoryLayout, Sequence[Rows]]]) -> DataFrame:
    """``stage`` and ``line`` of all events."""
    states = [_Events(layout, rows).state() for layout, rows in steps]
    return as_lines(reduce(DataFrame.unionAll, states))


@dataclass(frozen=True)
class _Events:
    """The events of one layout."""

    history: HistoryLayout
    steps: Sequence[Rows]

    def state(self) -> DataFrame:
        """What is staged of each event."""
        history, op = self.history, F.col("op")
        partial = left_out(history.layout) if self._traits.deletes else ()
        raw = history.reader.after(tuple(sorted({*self._traits.unsent, *partial})))
        rows = with_old_rows(self._rows(), history.layout)
        if history.rules.selects:
            # What hinges on a value that was not sent stays: nothing says that it may go.
            rows = rows.filter(history.rules.may_pass(raw, op))
        cells = history.rules.apply(raw, op)
        own = {
            OP: op,
            XID: F.col("xid").cast("string"),
            COMMITTED_AT: F.unix_micros("committed_at").cast("string"),
            RELATION: self._relation(),
            UNCHANGED: self._unchanged(cells),
            BEFORE: self._before(),
        }
        facts = {
            "segment": F.lit(0),
            "stage": F.lit(history.stage.number),
            "op": F.lit("insert"),
            "known": F.lit("a"),
            "copies": F.lit(None).cast("int"),
            "unsent": F.lit(None).cast("array<int>"),
            "origin": F.lit(None).cast("array<string>"),
        }
        fields = [own[name].alias(name) for name in _STAGED]
        state = rows.select("lsn", "seq", *fields, self._values(cells).alias("values"))
        nothing = F.lit("\t".join(_NULL for _ in cells))  # of a TRUNCATE
        values = F.coalesce(F.expr(copy_text("values")), nothing)
        known = [F.coalesce(name, F.lit(_NULL)) for name in _STAGED]
        text = F.concat_ws("\t", *known, values)
        return state.withColumns({**facts, "text": text}).select(*STATE)

    @cached_property
    def _traits(self) -> Traits:
        return reduce(Traits.joined, [step.traits for step in self.steps])

    def _rows(self) -> DataFrame:
        """Rows of the log, their arrays in the order of the layout."""
        if len(self.steps) == 1:
            return self.history.batch.rows(self.steps[0])
        shapes = {shape.id: shape for step in self.steps for shape in step.shapes}
        spans = [at_or_after(step.low) & at_or_before(step.high) for step in self.steps]
        mine = of_shapes(shapes) & reduce(Column.__or__, spans)
        frame = self.history.batch.changes.filter(mine)
        return self.history.layout.align(frame, shapes.values())

    def _values(self, cells: list[Cell]) -> Column:
        """The texts of a row."""
        if not self.history.rules.rules:
            return F.col("after")
        return F.when(F.col("after").isNotNull(), F.array(*[cell.text for cell in cells]))

    def _relation(self) -> Column:
        if not self.history.parted:
            return F.lit(None).cast("string")
        shapes = {shape.id: shape.oid for step in self.steps for shape in step.shapes}
        pairs = [F.lit(number) for pair in shapes.items() for number in pair]
        return F.create_map(*pairs)[F.col("shape")].cast("string")

    def _unchanged(self, cells: list[Cell]) -> Column:
        """Names of the columns that were not sent, as an array of Postgres; NULL when all were."""
        missing = [
            F.when(~cell.sent, F.lit(_element(name)))
            for name, cell in zip(self.history.names, cells, strict=True)
            if cell.sent is not None
        ]
        if not missing:
            return F.lit(None).cast("string")
        names = F.concat_ws(",", *missing)
        return F.when(names != "", F.concat(F.lit("{"), names, F.lit("}")))

    def _before(self) -> Column:
        """Old values that were sent, as JSON of Postgres texts by name; NULL when none were."""
        if not (self._traits.old_rows or self._traits.deletes):
            return F.lit(None).cast("string")
        history, entries = self.history, []
        cells = history.rules.apply(history.reader.before(), F.col("op"))
        for name, cell in zip(self.history.names, cells, strict=True):
            entry = F.struct(F.lit(name).alias("key"), cell.text.alias("value"))
            entries.append(entry if cell.sent is None else F.when(cell.sent, entry))
        old = F.to_json(F.map_from_entries(F.array_compact(F.array(*entries))))
        # Nothing else of JSON means something to COPY.
        escaped = F.replace(old, F.lit("\\"), F.lit("\\\\"))
        return F.when(F.col("before").isNotNull(), escaped)


def _unstaged(value: str, column: shape.Column, kind: str) -> str:
    """SQL: a value of the stage as its column in the table has it."""
    if column.name == COMMITTED_AT:
        return f"timestamptz 'epoch' + {value} * interval '1 microsecond'"
    return value if kind == column.type_name else f"{value}::{kind}"


def _element(name: str) -> str:
    """A text as an element of an array, as COPY reads it."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    for character, letter in (("\\", "\\"), ("\t", "t"), ("\n", "n"), ("\r", "r")):
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'
