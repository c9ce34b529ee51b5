"""What a batch does to rows, as lines for COPY: one per key, or per equal rows without a key.

Values stay Postgres texts, keys are compared as texts: what the target does with a value is the
target's business. Of each row a line says

* ``segment``: between which two commands of the batch it belongs
* ``kind``: u the row is to be as said, d it is to be gone, p it is to be changed if it is there
* ``known``: a it was not there before, p it was, r nobody knows (rows that were read)
* ``copies``: of rows without a key, how many more or fewer there are to be
* ``unsent``: values that the target has, in the row itself or in the one with the key ``o…``

Python sees lines only, in whole buffers; they are made by expressions of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgtide.position import Position
from pgtide.rules import TableRules
from pgtide.shape import Shape
from pgtide.sinks.postgres import keyed_state, ruled_rows
from pgtide.sinks.postgres.keyed_state import END, NULL, STATE, TAB, TextLayout, copy_text
from pgtide.sinks.postgres.stages import Stage
from pgtide.spark.alignment import Alignment
from pgtide.spark.compaction import Traits, from_old_row
from pgtide.spark.keyed_events import counted
from pgtide.spark.layout import ROW_OPS, Layout
from pgtide.spark.sql_text import case


@dataclass(frozen=True)
class TableRows:
    """The rows of one table in a batch."""

    layout: Layout
    shapes: tuple[Shape, ...]
    traits: Traits
    once: bool  # no row comes twice: all are inserts, or reads of one snapshot
    rules: TableRules

    @property
    def number(self) -> int:
        """Of its stage: partitions with keys of their own have the root's layout in common."""
        return min(shape.id for shape in self.shapes)

    @property
    def ruled(self) -> bool:
        """Whether rules change or select rows; another name for the table changes none."""
        renames = self.rules.route is not None and bool(self.rules.route.rename)
        return bool(self.rules.rules) or self.rules.selects or renames

    @property
    def together(self) -> bool:
        """Whether rows may be compacted together with those of other tables."""
        return bool(self.layout.key_names) and not self.traits.unsent and not self.ruled

    @property
    def in_place(self) -> bool:
        """Whether events may be staged one by one together with those of other tables."""
        fills = bool(self.traits.unsent) and self.layout.shape.replica_identity == "f"
        return not fills and not self.ruled

    @property
    def as_they_are(self) -> bool:
        """Whether every event is a row to write."""
        return self.once and not self.ruled

    @property
    def plain(self) -> bool:
        """Whether its last states can be told from what was sent, without Spark's SQL."""
        return self.as_they_are or self.together


@dataclass(frozen=True)
class StagedRows:
    """The rows of a batch by stage."""

    pipeline: str
    tables: Sequence[TableRows]
    cuts: Sequence[Position]  # where segments begin, but for the first
    every: bool = False  # every event in its place, instead of one row per key

    @cached_property
    def stages(self) -> dict[int, tuple[Stage, TableRows]]:
        """By number, where rows go."""
        found = {}
        for table in self.tables:
            if table.ruled:
                stages = [
                    ruled_rows.stage_of(self.pipeline, table.number, table.layout, table.rules)
                ]
            else:
                whole = not self.every and table.plain
                aligned = replace(table.layout.shape, id=table.number)
                shapes = table.shapes if whole else (aligned,)
                keys = table.layout.key_names
                moves = self.every or (bool(table.traits.unsent) and table.traits.old_rows)
                stages = [Stage.of(self.pipeline, one, keys, moves=moves) for one in shapes]
            found.update({stage.number: (stage, table) for stage in stages})
        return found

    def lines(self, frame: DataFrame, spared: Sequence[DataFrame] = ()) -> DataFrame:
        """``stage`` and ``line`` of everything that is to be staged, keys that sweeps spare too."""
        parts = [*(self._states(frame) if self.tables else ()), *spared]
        return as_lines(reduce(DataFrame.unionAll, parts))

    def _states(self, frame: DataFrame) -> list[DataFrame]:
        ops = ", ".join(f"'{op}'" for op in ROW_OPS)
        events = _of(frame.filter(f"op IN ({ops})"), self.tables)
        events = events.withColumn("segment", self._segment())
        if self.every:
            together = [table for table in self.tables if table.in_place]
            alone = [table for table in self.tables if not table.in_place]
            parts = [_in_place(_of(events, together), together)] if together else []
            return parts + [self._alone(_of(events, [table]), table) for table in alone]
        once = [table for table in self.tables if table.as_they_are]
        together = [table for table in self.tables if table.together and not table.once]
        parts = [keyed_state.each(_of(events, once))] if once else []
        if together:
            keys = [(table.shapes, table.layout.key_names) for table in together]
            moves = any(table.traits.old_rows for table in together)
            parts.append(keyed_state.compacted(_of(events, together), keys, moves=moves))
        alone = [t for t in self.tables if not (t.as_they_are or t.together)]
        return parts + [self._alone(_of(events, [table]), table) for table in alone]

    def _alone(self, events: DataFrame, table: TableRows) -> DataFrame:
        """One table by itself: without a key, with values that were not sent, or with rules."""
        layout = TextLayout.like(table.layout)
        aligned = layout.align(events, table.shapes)
        admitted = table.rules.admits(F.col("op"))
        if admitted is not None:
            aligned = aligned.filter(admitted)
        if self.every:
            if table.traits.unsent and layout.shape.replica_identity == "f":
                aligned = from_old_row(aligned, layout, table.traits.unsent)
            state = keyed_state.every(aligned, [(table.number, table.shapes, layout)])
        elif layout.key_names:
            state = keyed_state.filled(aligned, layout, table.traits)
        else:
            state = _counted(aligned, layout, table.traits)
        if table.ruled:
            state = ruled_rows.apply(state, table.layout, table.rules, table.traits)
        return _as_text(state.withColumn("stage", F.lit(table.number)))

    def _segment(self) -> Column:
        if not self.cuts:
            return F.lit(0)
        # As one value: numbers inside of expressions are in the code that Spark compiles.
        cuts = ", ".join(f"struct({int(cut.lsn)}L AS lsn, {cut.seq}L AS seq)" for cut in self.cuts)
        return F.expr(f"size(filter(array({cuts}), cut -> cut <= struct(lsn, seq)))")


def _in_place(events: DataFrame, tables: Sequence[TableRows]) -> DataFrame:
    """Every event of several tables: a frame for each of them would take longer to plan."""
    aligned = reduce(Alignment.__or__, (Alignment.to(t.layout.shape, t.shapes) for t in tables))
    known = [(table.number, table.shapes, TextLayout.like(table.layout)) for table in tables]
    return _as_text(keyed_state.every(aligned.apply(events), known))


def _as_text(state: DataFrame) -> DataFrame:
    return state.withColumn("text", F.expr(copy_text("values"))).select(*STATE)


def _of(events: DataFrame, tables: Sequence[TableRows]) -> DataFrame:
    return events.filter(F.col("shape").isin(0, *[s.id for t in tables for s in t.shapes]))


def _counted(events: DataFrame, layout: Layout, traits: Traits) -> DataFrame:
    """Rows without a key: how many more there are of each, or fewer."""
    if traits.unsent:
        events = from_old_row(events, layout, traits.unsent)
    return counted(events, by=("segment",), newest=("lsn", "seq")).selectExpr(
        "segment",
        "CASE WHEN copies < 0 THEN 'delete' ELSE 'insert' END AS op",
        "row AS values",
        "lsn",
        "seq",
        "CASE WHEN copies < 0 THEN 'p' ELSE 'a' END AS known",
        "copies",
        "CAST(NULL AS array<int>) AS unsent",
        "CAST(NULL AS array<string>) AS origin",
    )


def as_lines(state: DataFrame) -> DataFrame:
    """The form that COPY reads, with the end of the line; a stage without origins has none."""
    fields = [
        "CAST(segment AS string)",
        "CAST(lsn AS string)",
        "CAST(seq AS string)",
        "CASE op WHEN 'delete' THEN 'd' WHEN 'patch' THEN 'p' ELSE 'u' END",
        "known",
        f"coalesce(CAST(copies AS string), {NULL})",
        case("unsent IS NULL", NULL, "concat('{', array_join(unsent, ','), '}')"),
        "text",
        case("origin IS NOT NULL", copy_text("origin")),
    ]
    line = f"concat(concat_ws({TAB}, {', '.join(fields)}), {END})"
    return state.selectExpr("CAST(stage AS bigint) AS stage", f"{line} AS line")
