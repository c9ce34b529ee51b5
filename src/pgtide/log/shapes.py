"""The shapes table: every column layout that rows of the log refer to.

A shape is durable before the first commit whose rows carry its id. Ids only
grow; the newest shape of a relation is the one that holds now.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pgtide.errors import LogMissing
from pgtide.log.schema import SHAPES, SHAPES_SCHEMA
from pgtide.log.storage import Storage
from pgtide.log.table import commit_path, commit_refused, create_refused, open_table
from pgtide.position import Lsn
from pgtide.shape import Column, Shape

SHAPES_APP_ID = "pgtide/shapes"
MOST_FILES = 20
_SYNC_VERSIONS = 4  # an append, and what tidying up adds


class ShapeStore:
    """All shapes of a log in memory, and the only way to add one.

    ``current`` is what held at ``position``: a transaction that was not committed
    to the log may have left shapes behind, and comes again from its beginning.
    """

    def __init__(self, log: Storage, position: Lsn) -> None:
        self._storage = log.child(SHAPES)
        self._table = open_shapes(log)
        # Whoever wrote last may have been killed before it could.
        _sync(self._storage, self._table.version() - _SYNC_VERSIONS, self._table.version())
        self.by_id: dict[int, Shape] = {}
        self.current: dict[int, Shape] = {}
        self._pending: list[Shape] = []
        for shape in read_shapes(self._table):
            self.by_id[shape.id] = shape
            if shape.since < position:
                self.current[shape.oid] = shape

    def assign(self, shape: Shape) -> Shape:
        """Give a shape its id; the shape that holds already keeps the one it has."""
        current = self.current.get(shape.oid)
        if current is not None and current.same_layout(shape):
            return current
        shape = self._left_behind(shape, current) or self._new(shape)
        self.current[shape.oid] = shape
        return shape

    def _new(self, shape: Shape) -> Shape:
        shape = replace(shape, id=max(self.by_id, default=0) + 1)
        self._pending.append(shape)
        self.by_id[shape.id] = shape
        return shape

    def _left_behind(self, shape: Shape, current: Shape | None) -> Shape | None:
        """The same shape of the same transaction, from a session that did not get to its end.

        Never one that the transaction has left: that the table looks so again is a new shape.
        """
        for known in self.by_id.values():
            later = current is None or known.id > current.id
            if later and known.since == shape.since and known.same_layout(shape):
                return known
        return None

    def persist(self) -> None:
        """Make every assigned shape durable, in one commit."""
        if self._pending:
            _append(self._table, self._storage, self._pending)
            self._pending.clear()
            try:
                _tidy(self._table, self._storage)
            except (DeltaError, OSError) as exc:
                raise commit_refused(exc, self._storage) from exc


def create_shapes(log: Storage, baseline: Sequence[Shape]) -> None:
    """Make the table, with the shapes that hold at the start."""
    storage = log.child(SHAPES)
    try:
        table = DeltaTable.create(
            storage.root, SHAPES_SCHEMA, storage_options=storage.options, mode="ignore"
        )
    except (DeltaError, OSError) as exc:
        raise create_refused(exc, storage) from exc
    storage.sync(commit_path(0))
    if baseline and table.version() == 0:
        # One below, as everything that is no transaction: one may commit exactly there.
        ordered = [
            replace(shape, id=index + 1, since=Lsn(max(shape.since - 1, 0)))
            for index, shape in enumerate(baseline)
        ]
        _append(table, storage, ordered)


def read_shapes(table: DeltaTable) -> list[Shape]:
    """Every shape of the table, oldest first."""
    # Without threads: Arrow's would still run delta-rs's file system when a short process exits,
    # and the C++ runtime then aborts it.
    rows = table.to_pyarrow_dataset().to_table(use_threads=False).to_pylist()
    return sorted((_shape(row) for row in rows), key=lambda shape: shape.id)


def open_shapes(log: Storage) -> DeltaTable:
    """Open the table of a log."""
    try:
        return open_table(log.child(SHAPES))
    except LogMissing as exc:
        raise LogMissing(
            "the log has no shapes",
            detail=exc.detail,
            hint="Restore it from a backup, or start a new log: pgtide init",
        ) from None


def _append(table: DeltaTable, storage: Storage, shapes: Sequence[Shape]) -> None:
    before = table.version()
    storage.require("_delta_log")
    try:
        write_deltalake(
            table,
            pa.Table.from_pylist([_row(shape) for shape in shapes], schema=SHAPES_SCHEMA),
            mode="append",
            # A log that was begun before a fact of columns existed learns of it here.
            schema_mode="merge",
            # Two writers that hand out the same id would conflict here: one of them fails.
            commit_properties=CommitProperties(
                app_transactions=[Transaction(SHAPES_APP_ID, shapes[-1].id)]
            ),
        )
        table.update_incremental()
    except (DeltaError, OSError) as exc:
        raise commit_refused(exc, storage) from exc
    _sync(storage, before + 1, table.version())


def _sync(storage: Storage, first: int, last: int) -> None:
    """Make commits durable with the files they added, as far as they are still there."""
    for version in range(first, last + 1):
        path = commit_path(version)
        if not storage.exists(path):
            continue  # cleaned, or an object store, which is durable when it answers
        for line in (storage.read(path) or b"").splitlines():
            added = json.loads(line).get("add", {}).get("path")
            if added is not None and storage.exists(unquote(added)):
                storage.sync(unquote(added))
        storage.sync(path)


def _tidy(table: DeltaTable, storage: Storage) -> None:
    """Merge the files when there are many: each costs time whenever the table is opened."""
    if len(table.file_uris()) < MOST_FILES:
        return
    before = table.version()
    table.optimize.compact()
    table.create_checkpoint()
    _sync(storage, before + 1, table.version())
    # Readers that opened the table before have a day to finish.
    table.vacuum(retention_hours=24, enforce_retention_duration=False, dry_run=False)


def _row(shape: Shape) -> dict[str, Any]:
    return {
        "shape": shape.id,
        "since_lsn": int(shape.since),
        "oid": shape.oid,
        "schema": shape.schema,
        "table": shape.table,
        "replica_identity": shape.replica_identity,
        "root_oid": shape.root_oid,
        "root_schema": shape.root_schema,
        "root_table": shape.root_table,
        "columns": [asdict(column) for column in shape.columns],
    }


def _column(fields: dict[str, Any]) -> Column:
    # A log that is older than a fact has no value for it; only attnum may be None by itself.
    return Column(**{k: v for k, v in fields.items() if v is not None})


def _shape(row: dict[str, Any]) -> Shape:
    return Shape(
        oid=row["oid"],
        schema=row["schema"],
        table=row["table"],
        columns=tuple(_column(column) for column in row["columns"]),
        replica_identity=row["replica_identity"],
        root_oid=row["root_oid"],
        root_schema=row["root_schema"],
        root_table=row["root_table"],
        id=row["shape"],
        since=Lsn(row["since_lsn"]),
    )
