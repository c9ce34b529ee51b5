"""Changes from before a table's tracking began that a reader may still not see.

They are in the log: transactions that were running, as a snapshot taken later says, and whose
commit record was there all the same. And a refresh that goes on after a pause looks for rows
that meanwhile moved to another key without bringing all of their values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pgtide.capture.windows import Windows
from pgtide.log.lookup import changes_by, moves_without_values
from pgtide.log.reader import Log
from pgtide.log.schema import CHANGES, OPS
from pgtide.log.storage import Storage
from pgtide.position import Lsn
from pgtide.postgres.visibility import Visibility
from pgtide.shape import Shape

_OP_NAMES = pa.array(OPS, pa.string())


class Seeding:
    """Looks changes up in the log."""

    def __init__(self, windows: Windows, path: str, storage: dict[str, str]) -> None:
        self._windows = windows
        self._path, self._options = path, storage

    def seed(self, oid: int, low: Lsn, since: Lsn | None, visibility: Visibility) -> Lsn:
        """Add what is needed; the position before which nothing of the table is missing.

        ``low``: where tracking began. ``since``: where the refresh did, if earlier.
        """
        log = Log(self._path, self._options)
        shapes = {shape.id: shape for shape in log.shapes().values() if shape.oid == oid}
        names = {(shape.schema, shape.table) for shape in shapes.values()}
        changes = Storage(self._path, self._options).child(CHANGES)
        oldest = low if since is None else min(low, since)
        if visibility.running:
            found = changes_by(changes, log.snapshot(), names, visibility.running_in_wal())
            for shape, rows in _by_shape(found, shapes):
                self._windows.seed(oid, rows, shape)
                oldest = min(oldest, Lsn(rows.column("lsn").to_numpy().min()))
        if since is not None and shapes:
            moved = moves_without_values(changes, log.snapshot(), names, since)
            for shape, rows in _by_shape(moved, shapes):
                self._windows.seed(oid, rows, shape)
        return oldest


def _by_shape(
    batches: Iterator[pa.RecordBatch], shapes: dict[int, Shape]
) -> Iterator[tuple[Shape, pa.RecordBatch]]:
    """Rows of the relation, in the form of decoded rows."""
    for batch in batches:
        ids = batch.column("shape").fill_null(0).to_numpy(zero_copy_only=False)
        for number in np.unique(ids).tolist():
            if number in shapes:
                rows = batch.filter(pa.array(ids == number))
                codes = [OPS.index(op) for op in rows.column("op").to_pylist()]
                index = rows.schema.get_field_index("op")
                yield shapes[number], rows.set_column(index, "op", pa.array(codes, pa.uint8()))
