"""Keys and rows of a table's changes, read from the log's files by Python.

Spark would plan, and compile anew for every other position, a query over files that mostly need
not be opened: their bounds, and those of their row groups, say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute

from pgtide.log.files import open_input
from pgtide.log.snapshot import DataFile, newest_snapshot
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.spark.alignment import Alignment, Places
from pgtide.spark.layout import ROW_OPS
from pgtide.verify.moment import Moment
from pgtide.verify.targets import Plan

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

_NUMBERS = ["lsn", "seq", "xid", "shape", "op"]
_TEXTS = ["shape", "before", "after", "unchanged"]


@dataclass(frozen=True)
class Window:
    """Changes after the moment, or by transactions that it does not see."""

    moment: Moment
    until: Position | None = None  # what is behind it is not in the target, except for rows read

    def holds(self, numbers: Any) -> Any:
        xids = numbers["xid"].fill_null(0).to_numpy()
        unseen = self.moment.visibility.hides(xids) & numbers["xid"].is_valid().to_numpy()
        lsns = numbers["lsn"].to_numpy()
        chosen = (lsns > int(self.moment.before)) | unseen
        if self.until is not None:
            lsn, seq = int(self.until.lsn), self.until.seq
            applied = (lsns < lsn) | ((lsns == lsn) & (numbers["seq"].to_numpy() <= seq))
            chosen &= applied | _is_in(numbers["op"], ["read"])
        return chosen


def logged_keys(changes: Storage, plan: Plan, window: Window) -> Iterator[tuple[str, ...]]:
    """Keys that were changed."""
    for rows, places in _changes(changes, plan, window):
        indexes = [index if places is None else places[index] for index in plan.key_indexes]
        for side in ("after", "before"):
            sent = rows[side].filter(rows[side].is_valid()).combine_chunks()
            if len(sent):
                texts = [pc.list_element(sent, index).to_pylist() for index in indexes]
                yield from (key for key in zip(*texts, strict=True) if None not in key)


def logged_rows(changes: Storage, plan: Plan, window: Window) -> Iterator[list[str | None]]:
    """Rows of a table without a key, old and new: an update has sent all of the old one."""
    for rows, places in _changes(changes, plan, window):
        for change in rows.select(["before", "after", "unchanged"]).to_pylist():
            before, after = change["before"], change["after"]
            if before is not None:
                yield _ordered(before, places)
            if after is not None:
                for index in change["unchanged"] or ():
                    after[index] = before[index]
                yield _ordered(after, places)


def _ordered(row: list[str | None], places: Places | None) -> list[str | None]:
    if places is None:
        return row
    return [row[place] if isinstance(place, int) else place for place in places]


def _changes(
    changes: Storage, plan: Plan, window: Window
) -> Iterator[tuple[pa.Table, Places | None]]:
    """Changes of one shape at a time, and where it has the columns of now."""
    names, moment = plan.logged.names, window.moment
    for file in newest_snapshot(changes).files:
        if (file.table is None or file.table in names) and _may_matter(file, moment):
            with open_input(changes, file.path) as source:
                parquet = pq.ParquetFile(source)
                for group in range(parquet.num_row_groups):
                    if file.high.lsn > moment.before or _is_late(parquet, group, moment):
                        yield from _of_group(parquet, group, plan, window)


def _may_matter(file: DataFile, moment: Moment) -> bool:
    late = file.high.lsn > moment.before
    return late or moment.oldest is None or file.day >= moment.oldest.date()


def _is_late(parquet: Any, group: int, moment: Moment) -> bool:
    """Whether a row group may have a transaction that was still running."""
    schema = parquet.schema_arrow
    facts = parquet.metadata.row_group(group)
    for number in range(facts.num_columns):
        column = facts.column(number)
        if column.path_in_schema == "committed_at" and column.statistics is not None:
            newest = column.statistics.max
            assert schema.field("committed_at").type.tz == "UTC"
            return moment.oldest is None or newest is None or newest >= moment.oldest
    return True


def _of_group(
    parquet: Any, group: int, plan: Plan, window: Window
) -> Iterator[tuple[pa.Table, Places | None]]:
    numbers = parquet.read_row_group(group, columns=_NUMBERS, use_threads=False)
    mine = _is_in(numbers["shape"], plan.logged.ids) & _is_in(numbers["op"], ROW_OPS)
    chosen = np.flatnonzero(mine & window.holds(numbers))
    if not len(chosen):
        return
    rows = parquet.read_row_group(group, columns=_TEXTS, use_threads=False).take(chosen)
    alignment = Alignment.to(plan.logged.layout.shape, plan.logged.shapes)
    for shape in pc.unique(rows["shape"]).to_pylist():
        yield rows.filter(pc.equal(rows["shape"], shape)), alignment.places.get(shape)


def _is_in(column: Any, values: Sequence[int] | Sequence[str]) -> Any:
    found = column.cast(pa.string()) if values and isinstance(values[0], str) else column
    return pc.is_in(found, value_set=pa.array(values, found.type)).to_numpy()
