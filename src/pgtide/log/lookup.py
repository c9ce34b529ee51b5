"""Finding changes in the log, of one table or since a time, without Spark and in no order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pgtide.log.files import open_input
from pgtide.log.snapshot import DataFile, Snapshot
from pgtide.log.storage import Storage
from pgtide.position import Lsn

_NARROW = ["lsn", "xid", "op"]
_WHOLE = [*_NARROW, "shape", "before", "after", "unchanged"]


def changes_by(
    changes: Storage, snapshot: Snapshot, tables: Iterable[tuple[str, str]], xids: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Rows of some tables that certain transactions wrote; ids as the WAL has them."""
    written = pc.field("xid").isin(list(xids))
    yield from _matching(changes, snapshot, tables, Lsn(0), written, written)


def moves_without_values(
    changes: Storage, snapshot: Snapshot, tables: Iterable[tuple[str, str]], since: Lsn
) -> Iterator[pa.RecordBatch]:
    """Updates since a position that changed a key and did not carry all of the row."""
    updated = (pc.field("lsn") >= int(since)) & (pc.field("op") == "update")
    moved = updated & pc.field("before").is_valid() & pc.field("unchanged").is_valid()
    yield from _matching(changes, snapshot, tables, since, updated, moved)


def first_since(changes: Storage, snapshot: Snapshot, moment: datetime) -> Lsn | None:
    """The first position at which something was committed then or later; None: nothing was.

    Clocks may go back: what was committed before may stand behind it, what was committed since
    does not stand before it.
    """
    found: Lsn | None = None
    # A file's day is that of its rows, or a later one.
    files = [file for file in snapshot.files if file.day >= moment.astimezone(UTC).date()]
    for file in sorted(files, key=lambda file: file.low):
        if found is not None and file.low.lsn >= found:
            break
        lsns = _committed(changes, file, pc.field("committed_at") >= pa.scalar(moment))
        if len(lsns):
            first = Lsn(pc.min(lsns).as_py())
            found = first if found is None else min(found, first)
    return found


def begins_before(changes: Storage, snapshot: Snapshot, moment: datetime, first: Lsn) -> bool:
    """Whether something before a position was committed before a time."""
    earlier = (pc.field("committed_at") < pa.scalar(moment)) & (pc.field("lsn") < int(first))
    files = [file for file in snapshot.files if file.low.lsn < first]
    return any(
        len(_committed(changes, file, earlier)) for file in sorted(files, key=lambda file: file.low)
    )


def _committed(changes: Storage, file: DataFile, condition: pc.Expression) -> pa.ChunkedArray[Any]:
    """LSNs of the rows whose LSN and time fulfil a condition."""
    with open_input(changes, file.path) as source:
        rows = pq.ParquetFile(source).read(columns=["lsn", "committed_at"], use_threads=False)
    return rows.filter(condition).column("lsn")


def _matching(
    changes: Storage,
    snapshot: Snapshot,
    tables: Iterable[tuple[str, str]],
    since: Lsn,
    narrow: pc.Expression,
    condition: pc.Expression,
) -> Iterator[pa.RecordBatch]:
    """Rows that fulfil a condition; ``narrow`` is as much of it as needs no texts."""
    names = set(tables)
    for file in snapshot.files:
        if file.high.lsn < since or (file.table is not None and file.table not in names):
            continue
        with open_input(changes, file.path) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.num_row_groups):
                # The numbers first: few rows match, and reading texts is what costs.
                numbers = parquet.read_row_group(group, columns=_NARROW, use_threads=False)
                if ds.dataset(numbers).count_rows(filter=narrow):
                    rows = parquet.read_row_group(group, columns=_WHOLE, use_threads=False)
                    yield from ds.dataset(rows).to_table(filter=condition).to_batches()
