"""Finding the changes of one table in the log, without Spark and without any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pgtide.log.files import open_input
from pgtide.log.snapshot import Snapshot
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
