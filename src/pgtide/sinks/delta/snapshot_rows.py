"""Rows of one snapshot that a table gets in several writes: appended, where others are merged.

An initial snapshot may be far larger than a batch, and merging each part of it into the parts
before would cost the square of its size. All of its rows have one LSN, and no key comes twice.
So as long as a table holds rows of that snapshot and nothing else, the next ones are new.

Each such write leaves a mark in its commit: the LSN, and the last ``seq``. A table whose newest
commit has the mark was empty before the first of them, and has got nothing else since. Any
other write ends that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltalake import DeltaTable, Transaction

from pgtide.log.storage import Storage
from pgtide.log.table import commit_path
from pgtide.pipeline.batch import Batch
from pgtide.pipeline.steps import Rows
from pgtide.sinks.delta.target import Target
from pgtide.sinks.target_storage import target_answers

SNAPSHOT = "pgtide/snapshot"


def snapshot_marks(batch: Batch, target: Target, step: Rows) -> Sequence[Transaction] | None:
    """The marks for rows that may be appended as they are; None: they have to be merged."""
    table = target.open()
    assert table is not None, "it was made ready"
    mark = _mark(batch, step)
    if not table.file_uris():
        return [mark] if mark else []
    return [mark] if mark and _continues(target, table, mark, step) else None


def _mark(batch: Batch, step: Rows) -> Transaction | None:
    """What tells of these rows, if all of them were read at one LSN."""
    shapes = {shape.id for shape in step.shapes}
    ops = {count.op for count in batch.census.counts if count.shape in shapes}
    if ops != {"read"} or step.low.lsn != step.high.lsn:
        return None
    return Transaction(f"{SNAPSHOT}/{step.high.lsn}", step.high.seq)


def _continues(target: Target, table: DeltaTable, mark: Transaction, step: Rows) -> bool:
    """Whether the newest commit has rows of the same snapshot, from before these."""
    storage = Storage(target.path, dict(target.storage))
    with target_answers():
        commit = storage.read(commit_path(table.version())) or b""
    for line in commit.splitlines():
        written = json.loads(line).get("txn", {})
        if written.get("appId") == mark.app_id:
            return int(written["version"]) < step.low.seq
    return False
