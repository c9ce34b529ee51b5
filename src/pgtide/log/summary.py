"""What a log holds: positions, size, events per table, shapes. The facts of ``log show``.

Counting reads two dictionary-encoded columns of every data file, one row group at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgtide.log.files import file_missing
from pgtide.log.order import count_rows, open_pieces
from pgtide.log.snapshot import DataFile, Snapshot
from pgtide.log.storage import Storage
from pgtide.position import Position
from pgtide.shape import Shape


def summarise(changes: Storage, snapshot: Snapshot, shapes: Mapping[int, Shape]) -> dict[str, Any]:
    """A JSON-ready description of one version of the log."""
    files = snapshot.files
    days = sorted({file.day for file in files})
    complete = snapshot.complete_from
    return {
        "source": {
            "system_identifier": snapshot.source.system_identifier,
            "database": snapshot.source.database,
            "slot": snapshot.source.slot,
        },
        "position": str(snapshot.position),
        "complete_from": str(complete) if complete else None,
        "first": _text(min((file.low for file in files), default=None)),
        "last": _text(max((file.high for file in files), default=None)),
        "version": snapshot.version,
        "events": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "days": [day.isoformat() for day in days],
        "tables": _tables(changes, files),
        "shapes": [
            {
                "id": shape.id,
                "schema": shape.schema,
                "table": shape.table,
                "since": str(shape.since),
                "replica_identity": shape.replica_identity,
                "columns": [
                    {"name": column.name, "type": column.type_name, "key": column.key}
                    for column in shape.columns
                ],
            }
            for shape in sorted(shapes.values(), key=lambda shape: shape.id)
        ],
    }


def _tables(changes: Storage, files: tuple[DataFile, ...]) -> list[dict[str, Any]]:
    try:
        counts = count_rows(piece for file in files for piece in open_pieces(changes, file))
    except FileNotFoundError as exc:
        raise file_missing(exc) from exc
    return [
        {"schema": schema, "table": table, "events": count}
        for (schema, table), count in sorted(counts.items(), key=lambda item: str(item[0]))
    ]


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)
