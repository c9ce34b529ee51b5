"""The rows of a snapshot that no table has: its sweeps, and the message that ends it.

In a log that had events before, rows of a target that are older than the snapshot and were not
read again are gone at the source. Of a table with a key that is said behind the reads. Of one
without, a target cannot tell which of its rows were read again, so it is said before them: the
old rows go, the rows that are read come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pgtide.capture.refresh_rows import sweep_payload
from pgtide.log.schema import FILE_SCHEMA
from pgtide.position import Lsn, Position
from pgtide.shape import Shape
from pgtide.snapshot.chunks import FIRST_SEQ_BITS
from pgtide.snapshot.keeper import Held
from pgtide.snapshot.tables import Selection

MESSAGE_PREFIX = "pgtide.snapshot"


@dataclass(frozen=True)
class Ending:
    """Which tables are swept, before and behind the reads, and where behind is."""

    before: tuple[Shape, ...]
    after: tuple[Shape, ...]
    last_chunk: int = 0

    @classmethod
    def of(cls, selection: Selection, *, swept: bool) -> Ending:
        """``swept``: the log has events. What a condition leaves out may still be there."""
        shapes = [table.shape for table in selection.tables if swept and table.where is None]
        return cls(
            before=tuple(shape for shape in shapes if not shape.keys),
            after=tuple(shape for shape in shapes if shape.keys),
        )

    @property
    def first_chunk(self) -> int:
        """The number of the first chunk that is read."""
        return 1 if self.before else 0

    def behind(self, chunks: int) -> Ending:
        """The same, for that many chunks."""
        return replace(self, last_chunk=self.first_chunk + chunks)

    def rows(self, held: Held, counted: Mapping[str, int]) -> tuple[pa.Table, pa.Table]:
        """The rows before and behind the reads, with the log's columns.

        ``counted``: rows that were read, by table.
        """
        lsn = Lsn(held.point - 1)
        sweep = json.dumps(sweep_payload(f"snapshot/{held.point}", Position(lsn)))
        before = [_row(held, seq, "sweep", sweep, shape) for seq, shape in enumerate(self.before)]
        behind = self.last_chunk << FIRST_SEQ_BITS
        after = [
            _row(held, behind + index, "sweep", sweep, shape)
            for index, shape in enumerate(self.after)
        ]
        message = json.dumps(
            {
                "prefix": MESSAGE_PREFIX,
                "transactional": False,
                "content": json.dumps({"tables": dict(counted)}),
            }
        )
        last = _row(held, behind + len(self.after), "message", message, None)
        return (
            pa.Table.from_pylist(before, schema=FILE_SCHEMA),
            pa.Table.from_pylist([*after, {**last, "last": True}], schema=FILE_SCHEMA),
        )


def _row(held: Held, seq: int, op: str, payload: str, shape: Shape | None) -> dict[str, Any]:
    return {
        "lsn": int(held.point) - 1,
        "seq": seq,
        "committed_at": held.taken_at,
        "op": op,
        "schema": shape.schema if shape is not None else None,
        "table": shape.table if shape is not None else None,
        "shape": shape.id if shape is not None else None,
        "payload": payload,
        "last": False,
    }
