"""Words that the kernel and its callers share: the state vector, codes, arrays.

The tuples of arrays hold numpy arrays on the Python side and their addresses in compiled
code, see ``memory.addresses``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Slots of the state vector, which lives across chunks.
LSN = 0  # commit LSN of the open transaction
XID = 1
COMMITTED_AT = 2  # microseconds since 2000-01-01
SEQ = 3  # next index inside the open transaction
IN_TRANSACTION = 4
SKIP = 5  # 1: the open transaction is in the log already
EMITTED = 6  # rows of the open transaction emitted in earlier chunks
RESUME = 7  # V: what ends at or before this LSN is in the log
END = 8  # end LSN of the last committed transaction
PATCH = 9  # 1: the row kept back from the previous chunk was its transaction's last
ROWS = 10  # rows in the outputs
COMPLETE = 11  # rows in the outputs that belong to committed transactions
BEFORE_VALUES = 12
BEFORE_BYTES = 13
AFTER_VALUES = 14
AFTER_BYTES = 15
UNCHANGED = 16
ERROR = 17
FILTERED = 18  # rows of tables that the configuration leaves out
EMITTED_HERE = 19  # rows of the open transaction emitted in this chunk
STATE_SIZE = 20

# Why decode_rows returned.
DONE = 0
OTHER_MESSAGE = 1
FAILED = 2
ROOM = 3

# Values of ERROR.
TRUNCATED = 1
UNKNOWN_RELATION = 2
COLUMN_COUNT = 3
OUTSIDE_TRANSACTION = 4
INSIDE_TRANSACTION = 5
BAD_COMMIT = 6
BAD_KIND = 7
TRAILING = 8
VALUE_KIND = 9
IMPOSSIBLE = 10

# Codes of the op column, indexes into pgtide.log.schema.OPS.
INSERT = 0
UPDATE = 1
DELETE = 2

# Commit times that are dates: year 1 to 9999, in microseconds since 2000-01-01.
FIRST_TIME = -63_082_281_600_000_000
LAST_TIME = 252_455_616_000_000_000

UNWANTED = -2  # slot value: the table is left out by configuration
ABSENT = -1  # slot value: no such relation
HASH_FACTOR = 0x9E3779B1

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Relations(NamedTuple):
    """Relation oid to slot, open addressing; a slot's number of columns."""

    keys: Any  # int64
    slots: Any  # int32
    widths: Any  # int32


class Side(NamedTuple):
    """One of before and after: lists of texts in Arrow's layout."""

    rows: Any  # int32: list offsets, one more than rows
    sent: Any  # uint8, 1: the list is there
    offsets: Any  # int32: text offsets, one more than values
    valid: Any  # uint8
    data: Any  # uint8


class Rows(NamedTuple):
    """The columns that are not lists of texts."""

    op: Any  # uint8
    slot: Any  # int32
    lsn: Any  # int64
    seq: Any  # int64
    xid: Any  # int64
    committed_at: Any  # int64
    last: Any  # uint8
    unchanged_rows: Any  # int32: list offsets
    unchanged: Any  # int32
