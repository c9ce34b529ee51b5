"""``python -m pgtide.capture.warm``: compile once, so that no capture or copy has to.

Compiled code is kept on disk next to the modules; this fills that cache. It is
part of installing, and harmless to run again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pgtide.capture import libpq
from pgtide.position import Lsn
from pgtide.snapshot import row_lz4
from pgtide.snapshot.text_page import text_page
from pgtide.wal.copy_lines import copy_lines
from pgtide.wal.copy_text import parse_lines
from pgtide.wal.decoder import Chunk, Decoder, LoggedMessage
from pgtide.wal.keyed_lists import Keyed, KeyPlaces, hashes, moved, newest
from pgtide.wal.messages import LogicalMessage, Relation, TypeName
from pgtide.wal.relations import Slot


class _NoTables:
    def relation(self, relation: Relation, lsn: Lsn) -> tuple[Slot, int] | None:
        return None

    def type_name(self, message: TypeName) -> None:
        return None

    def message(self, message: LogicalMessage, xid: int) -> LoggedMessage | None:
        return LoggedMessage("message", "{}")


def warm() -> None:
    """Compile everything that a capture or a copy calls."""
    message = np.frombuffer(b"M\0" + (8).to_bytes(8, "big") + b"p\0\0\0\0\0", np.uint8).copy()
    bounds = np.array([0], np.int64), np.array([len(message)], np.int64)
    Decoder(_NoTables(), resume=Lsn(0)).decode(Chunk(message, *bounds, 1))
    line = np.frombuffer(b"1\t2\n", np.uint8)
    rows = parse_lines(line, 1, 2)
    copy_lines(rows)
    one = np.zeros(1, np.int64)
    keyed = Keyed(rows, one, one, KeyPlaces.of([[0]]))
    newest(keyed, hashes(keyed), (one, one), (one, one))
    moved(rows, rows, one, keyed.keys)
    row_lz4.compressed(text_page(line, 1, 2))
    number: Any = numba.int64
    libpq.drain.compile((number,) * 14)


if __name__ == "__main__":
    warm()
