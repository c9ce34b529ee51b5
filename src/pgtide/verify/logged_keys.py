"""Keys of a table's changes, read from the log's files by Python.

Spark would plan, and compile anew for every other position, a query over files that mostly need
not be opened: their bounds, and those of their row groups, say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute

from pgtide.log.files import open_input
from pgtide.log.snapshot import DataFile, newest_snapshot
from pgtide.log.storage import Storage
from pgtide.spark.alignment import Alignment
from pgtide.spark.layout import ROW_OPS
from pgtide.verify.moment import Moment
from pgtide.verify.planning import TablePlan

pc: Any = compute  # its stubs know fewer kinds of arguments than the functions take

_NUMBERS = ["lsn", "xid", "shape", "op"]
_TEXTS = ["shape", "before", "after"]


def logged_keys(changes: Storage, plan: TablePlan, moment: Moment) -> Iterator[tuple[str, ...]]:
    """Keys that were changed after the moment, or by transactions that it does not see."""
    names = plan.logged.names
    for file in newest_snapshot(changes).files:
        if (file.table is None or file.table in names) and _may_matter(file, moment):
            with open_input(changes, file.path) as source:
                parquet = pq.ParquetFile(source)
                for group in range(parquet.num_row_groups):
                    if file.high.lsn > moment.before or _is_late(parquet, group, moment):
                        yield from _keys(parquet, group, plan, moment)


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


def _keys(parquet: Any, group: int, plan: TablePlan, moment: Moment) -> Iterator[tuple[str, ...]]:
    numbers = parquet.read_row_group(group, columns=_NUMBERS, use_threads=False)
    mine = pc.and_(
        pc.is_in(numbers["shape"], value_set=pa.array(plan.logged.ids, pa.int64())),
        pc.is_in(numbers["op"].cast(pa.string()), value_set=pa.array(ROW_OPS)),
    )
    xids = numbers["xid"].fill_null(0).to_numpy()
    unseen = moment.visibility.hides(xids) & numbers["xid"].is_valid().to_numpy()
    late = numbers["lsn"].to_numpy() > int(moment.before)
    chosen = np.flatnonzero(mine.to_numpy() & (late | unseen))
    if not len(chosen):
        return
    rows = parquet.read_row_group(group, columns=_TEXTS, use_threads=False).take(chosen)
    alignment = Alignment.to(plan.logged.layout.shape, plan.logged.shapes)
    for shape in pc.unique(rows["shape"]).to_pylist():
        own = rows.filter(pc.equal(rows["shape"], shape))
        places = alignment.places.get(shape)
        indexes = [index if places is None else places[index] for index in plan.key_indexes]
        for side in ("after", "before"):
            sent = own[side].filter(own[side].is_valid()).combine_chunks()
            if len(sent):
                texts = [pc.list_element(sent, index).to_pylist() for index in indexes]
                yield from (key for key in zip(*texts, strict=True) if None not in key)
