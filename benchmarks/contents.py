"""What a log holds after a run, read by Delta alone: counted by query, compared row by row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pgtide.log.schema import CHANGES, FILE_SCHEMA

# Logs begin at different slots, and ids of shapes are a log's own.
_COMPARED = [name for name in FILE_SCHEMA.names if name != "shape"]


def changed_rows(log: Path) -> pa.Table:
    """The inserts, updates and deletes of a log, sorted by position."""
    dataset = DeltaTable(str(log / CHANGES)).to_pyarrow_dataset()
    changes = pc.field("op").isin(["insert", "update", "delete"])
    rows = dataset.to_table(columns=_COMPARED, filter=changes)
    return rows.sort_by([("lsn", "ascending"), ("seq", "ascending")]).combine_chunks()


def check(log: Path, rows: int, reference: pa.Table | None) -> pa.Table:
    """Check the number of rows, and that they are those of the reference, if there is one."""
    found = changed_rows(log)
    if found.num_rows != rows:
        raise SystemExit(f"{log.name} has {found.num_rows} changes, {rows} were made")
    if reference is not None and not found.equals(reference):
        raise SystemExit(f"{log.name} differs from the log of the first run")
    return found if reference is None else reference
