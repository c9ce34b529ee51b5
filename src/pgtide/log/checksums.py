"""Version checksums: what Spark would run a job for, whenever it looks for news.

Delta's reader makes a snapshot of the newest version, and asks it for the table's metadata. Unless
the version has a checksum file beside its commit, that is a job: 0.4 s of each batch of a pipeline
on two slow cores. The protocol leaves these files to the writer's liking. They say nothing that the
commits do not, so they are not synced, and only those of the newest versions are kept. Nothing of
them is worth a commit: where one cannot be told, there is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgtide.log.storage import Storage

KEPT = 20  # versions: a reader looks for that of the newest one which it has just seen


class Checksums:
    """The checksums of a local table's versions, of which all actions since ``table`` are seen."""

    def __init__(self, changes: Storage, table: DeltaTable) -> None:
        assert changes.local is not None
        self._directory = changes.local
        self._files = self._bytes = 0
        self._known = False  # what the table consists of
        with suppress(DeltaError, OSError):  # the handle reads as it is asked
            sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
            self._files, self._bytes = len(sizes), sum(sizes)
            self._table = _table(table)
            self._known = True

    def see(self, action: Mapping[str, Any]) -> None:
        """Take an action of a commit into account."""
        if "add" in action:
            self._files += 1
            self._bytes += action["add"]["size"]
        elif "remove" in action:
            size = action["remove"].get("size")  # which need not be told
            self._known = self._known and size is not None
            self._files -= 1
            self._bytes -= size or 0

    def write(self, version: int) -> None:
        """Say what a version is, now that its commit is there; it does without if that fails."""
        if not self._known:
            return
        content = {"tableSizeBytes": self._bytes, "numFiles": self._files, **self._table}
        staged = self._directory / f"_checksum.{os.getpid()}.tmp"
        with suppress(OSError):
            staged.write_text(json.dumps(content, separators=(",", ":")))
            staged.replace(self._path(version))  # whole: a reader may come by
            self._path(version - KEPT).unlink(missing_ok=True)

    def _path(self, version: int) -> Path:
        return self._directory / "_delta_log" / f"{version:020}.crc"


def drop_checksums(changes: Storage) -> None:
    """Do without those that there are, if this may change the log at all."""
    if changes.local is not None:
        with suppress(OSError):
            for path in changes.local.glob("_delta_log/*.crc"):
                path.unlink(missing_ok=True)


def _table(table: DeltaTable) -> dict[str, Any]:
    """What versions have in common, until the table is altered."""
    metadata, protocol = table.metadata(), table.protocol()
    features = {
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    return {
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": metadata.configuration,
            "createdTime": metadata.created_time,
        },
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            **{name: known for name, known in features.items() if known is not None},
        },
    }
