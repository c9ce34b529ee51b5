"""The census of a batch: which tables, shapes and barriers it holds, in one small Spark job.

``file_census`` takes the same from the log's files where it can, without a job.

From it and the shapes of the log follow the steps of each table. Rows themselves stay where
they are: a step says between which positions its rows lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgtide.log.snapshot import DataFile
from pgtide.pipeline.cutting import Count, row_steps
from pgtide.pipeline.relation_histories import Change, RelationHistories, Told
from pgtide.pipeline.steps import Dropped, Renamed, Reshaped, Step, Swept, Truncated
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.spark.alignment import missing_values
from pgtide.spark.layout import Layout
from pgtide.spark.sweeps import Sweep

BARRIERS = ("truncate", "sweep", "ddl")


@dataclass(frozen=True)
class Mark:
    """A row that is a barrier, or may be one."""

    at: Position
    op: str
    shape: int | None
    payload: Mapping[str, Any]
    committed_at: datetime | None = None


@dataclass(frozen=True)
class Census:
    """What a batch holds."""

    counts: tuple[Count, ...]
    marks: tuple[Mark, ...]
    committed_at: datetime | None  # the newest
    whole: bool = True  # its last transaction ends in it
    # That have its rows, and others; none where Spark has counted.
    files: tuple[DataFile, ...] = field(default=(), compare=False)

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self.counts)

    @property
    def high(self) -> Position | None:
        """The last position of the batch, None when it is empty."""
        return max((count.high for count in self.counts), default=None)

    @property
    def low(self) -> Position:
        """The first position of the batch, which is not empty."""
        return min(count.low for count in self.counts)

    @property
    def interrupted(self) -> frozenset[int]:
        """Tables that commands name in a transaction of which a batch before has the beginning.

        Or may have: what is left out of the log takes a place in its transaction too.
        """
        low = self.low
        commands = (mark for mark in self.marks if mark.op == "ddl" and mark.at.lsn == low.lsn)
        objects = (item for mark in commands for item in mark.payload.get("objects", ()))
        return frozenset(item["oid"] for item in objects if "columns" in item and low.seq)

    @property
    def swept(self) -> bool:
        """Whether there are sweeps among the rows."""
        return any(count.op == "sweep" for count in self.counts)

    @property
    def changed(self) -> frozenset[int | None]:
        """The shapes of rows that were updated or deleted."""
        return frozenset(c.shape for c in self.counts if c.op in ("update", "delete"))


def take_census(batch: DataFrame) -> Census:
    """Count a batch."""
    at = F.struct("lsn", "seq")
    barrier = F.when(F.col("op").isin(*BARRIERS), F.struct("lsn", "seq", "payload", "committed_at"))
    found = (
        batch.groupBy("shape", "op")
        .agg(
            F.count("*").alias("rows"),
            F.min(at).alias("low"),
            F.max(at).alias("high"),
            F.max("committed_at").alias("committed_at"),
            F.max_by("last", at).alias("last"),
            F.max(F.col("before").isNotNull()).alias("old_rows"),
            F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("unsent"),
            F.collect_list(barrier).alias("barriers"),
        )
        .collect()
    )
    return census_of([_group(row) for row in found])


@dataclass(frozen=True)
class Group:
    """Some rows of one shape and operation, counted."""

    count: Count
    committed_at: datetime | None  # the newest
    last: bool  # the one behind all others ends its transaction
    marks: tuple[Mark, ...] = ()


def census_of(groups: Sequence[Group]) -> Census:
    """What all of these hold together."""
    counts: dict[tuple[int | None, str], Count] = {}
    for group in groups:
        key = group.count.shape, group.count.op
        counts[key] = counts[key].joined(group.count) if key in counts else group.count
    marks = sorted((m for group in groups for m in group.marks), key=lambda mark: mark.at)
    times = [group.committed_at for group in groups if group.committed_at is not None]
    ends = max(groups, key=lambda group: group.count.high, default=None)
    newest = max(times, default=None)
    return Census(tuple(counts.values()), tuple(marks), newest, ends is None or ends.last)


def _group(row: Any) -> Group:
    """One row of the aggregate."""
    count = Count(
        shape=row["shape"],
        op=row["op"],
        rows=row["rows"],
        low=_position(row["low"]),
        high=_position(row["high"]),
        old_rows=row["op"] == "update" and row["old_rows"],
        unsent=tuple(sorted(row["unsent"])),
    )
    marks = tuple(mark_of(row["op"], row["shape"], mark) for mark in row["barriers"])
    return Group(count, in_utc(row["committed_at"]), bool(row["last"]), marks)


def mark_of(op: str, shape: int | None, row: Any) -> Mark:
    """A barrier, from its row of the log."""
    payload = json.loads(row["payload"]) if row["payload"] else {}
    return Mark(_position(row), op, shape, payload, in_utc(row["committed_at"]))


def in_utc(time: datetime | None) -> datetime | None:
    """A time that Spark or Arrow has, as all others here."""
    return None if time is None else time.astimezone(UTC)


def steps_of(
    census: Census, shapes: Mapping[int, Shape], earlier: Iterable[Told] = ()
) -> list[Step]:
    """Everything that the batch does, as steps in no particular order.

    ``earlier``: commands of its first transaction that came before it, see ``interrupted``.
    """
    histories = RelationHistories(shapes)
    for told in earlier:
        if told.at.lsn == census.low.lsn and told.at < census.low:
            histories.change(told.item, told.at.lsn)
    barriers = [step for mark in census.marks for step in _barriers(mark, shapes, histories)]
    return [*barriers, *row_steps(census.counts, shapes, barriers)]


def _barriers(
    mark: Mark, shapes: Mapping[int, Shape], histories: RelationHistories
) -> Iterator[Step]:
    if mark.op == "truncate":
        assert mark.shape is not None
        shape = shapes[mark.shape]
        layout = Layout.of(shape, shapes)
        yield Truncated(layout.table, mark.at, layout, shape.oid if shape.root_oid else None)
        return
    if mark.op == "sweep":
        yield _swept(mark, shapes)
        return
    for item in mark.payload.get("dropped", ()):
        # A partition's own rows leave the root with it, which only a new look can tell.
        if item["type"] == "table" and "root" not in item:
            yield Dropped((item["schema"], item["name"]), mark.at, item["oid"])
    for item in mark.payload.get("objects", ()):
        change = histories.change(item, mark.at.lsn)
        if change is not None and not change.after.root_oid:
            yield from _changed(change, item, mark, shapes)


def _swept(mark: Mark, shapes: Mapping[int, Shape]) -> Swept:
    assert mark.shape is not None
    shape = shapes[mark.shape]
    layout = Layout.of(shape, shapes)
    partition = shape.oid if shape.root_oid else None
    sweep = Sweep.of(mark.payload, mark.at, partition, mark.committed_at)
    return Swept(layout.table, mark.at, layout, (sweep,))


def _changed(
    change: Change, item: Mapping[str, Any], mark: Mark, shapes: Mapping[int, Shape]
) -> Iterator[Step]:
    """What a command did to a table of its own, which it tells as ``item``."""
    before, after, at = change.before, change.after, mark.at
    new = (after.schema, after.table)
    if before is not None and before.table != new:
        yield Renamed(before.table, at, new, after.oid)
    added = _added(change, item, mark.payload)
    yield Reshaped(new, at, Layout.of(after, shapes), added, before)


def _added(
    change: Change, item: Mapping[str, Any], payload: Mapping[str, Any]
) -> dict[int, str | None]:
    """The columns that a command gave to a table that was there, with what older rows have."""
    if change.before is None:
        return {}
    known = change.before.attnums
    new = [c.attnum for c in change.after.columns if c.attnum not in known]
    missing = missing_values(item, payload.get("objects", ()))
    # What was not told need not be NULL: the command wrote rows anew, or columns had no numbers.
    told = missing.keys() if payload.get("rewrites") or None in known else new
    return {n: missing.get(n) for n in new if n is not None and n in told}


def _position(row: Any) -> Position:
    return Position(Lsn(row["lsn"]), row["seq"])
