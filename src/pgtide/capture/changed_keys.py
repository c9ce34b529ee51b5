"""Keys that delivered transactions have changed, as long as a reader may not see them.

A chunk of a refresh is read in a snapshot; its rows get a place in the log behind everything
that was delivered before the chunk's high watermark. A row that one of these transactions
changed, and whose change the snapshot does not see, is older than what the log has: it must not
be logged again. This module remembers which keys those are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgtide.log.schema import OPS
from pgtide.postgres.visibility import Visibility
from pgtide.shape import Shape

TRUNCATE = OPS.index("truncate")
_SEPARATOR = ":"


def key_texts(rows: pa.Array[Any], indexes: Sequence[int]) -> pa.Array[Any]:
    """One text per row that no other key has; ``rows`` are lists of texts, none missing."""
    columns: list[Any] = [pc.list_element(rows, index) for index in indexes]
    joined: pa.Array[Any] = columns[0]
    if len(columns) == 1:
        return joined
    # Lengths before the texts: ("a:", "b") and ("a", ":b") stay apart.
    sizes = [pc.cast(pc.binary_length(column), pa.string()) for column in columns]
    joined = pc.binary_join_element_wise(*sizes, *columns, _SEPARATOR)
    return joined


def texts(keys: pa.Array[Any]) -> list[str]:
    """Keys as plain texts."""
    found: list[Any] = keys.to_pylist()
    return found


def split_key(text: str, width: int) -> tuple[str, ...]:
    """The columns of a key again."""
    if width == 1:
        return (text,)
    *sizes, rest = text.split(_SEPARATOR, width)
    raw, parts = rest.encode(), []
    for size in map(int, sizes):
        parts.append(raw[:size].decode())
        raw = raw[size + 1 :]
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a snapshot does not see of the changes that were delivered."""

    keys: pa.Array[Any]
    unsent: pa.Array[Any]  # those of them whose event did not carry the whole row
    everything: bool  # the table was truncated
    altered: bool  # the table was altered: the chunk is of another time


@dataclass(slots=True, eq=False)
class ChangedKeys:
    """The changes of one relation since tracking began."""

    _xids: list[NDArray[np.int64]] = field(default_factory=list)
    _keys: list[pa.Array[Any]] = field(default_factory=list)
    _unsent: list[NDArray[np.bool_]] = field(default_factory=list)
    _truncated: set[int] = field(default_factory=set)
    _altered: set[int] = field(default_factory=set)
    count: int = 0
    moved: list[str] = field(default_factory=list)
    """Keys that rows moved to without bringing all their values: to be read by themselves."""

    def observe(self, rows: pa.RecordBatch, shape: Shape) -> None:
        """Take note of delivered rows, all of one shape of the relation."""
        xids = rows.column("xid").fill_null(0).to_numpy(zero_copy_only=False)
        truncates = rows.column("op").to_numpy() == TRUNCATE
        self._truncated.update(xids[truncates].tolist())
        indexes = shape.keys
        unsent = _unsent(rows, shape)
        for side in ("before", "after"):
            lists = rows.column(side)
            there = lists.is_valid().to_numpy(zero_copy_only=False)
            if there.any():
                keys = key_texts(lists.filter(pa.array(there)), indexes)
                self._add(xids[there], keys, unsent[there])
        moved = unsent & rows.column("before").is_valid().to_numpy(zero_copy_only=False)
        if moved.any():
            new = rows.column("after").filter(pa.array(moved))
            self.moved += texts(key_texts(new, indexes))

    def altered(self, xid: int) -> None:
        """The relation was altered by a transaction."""
        self._altered.add(xid)

    def hidden_from(self, visibility: Visibility) -> Hidden:
        """What a snapshot does not see."""
        self._combine()
        keys: pa.Array[Any] = pa.array([], pa.string())
        unsent = keys
        if self._xids:
            hidden = visibility.hides(self._xids[0])
            keys = self._keys[0].filter(pa.array(hidden))
            unsent = self._keys[0].filter(pa.array(hidden & self._unsent[0]))
        return Hidden(
            keys, unsent, _any(visibility, self._truncated), _any(visibility, self._altered)
        )

    def forget_seen_by(self, visibility: Visibility) -> None:
        """Drop what a snapshot sees: every later one sees it as well."""
        self._combine()
        if self._xids:
            hidden = visibility.hides(self._xids[0])
            self._xids = [self._xids[0][hidden]]
            self._keys = [self._keys[0].filter(pa.array(hidden))]
            self._unsent = [self._unsent[0][hidden]]
            self.count = len(self._xids[0])
        self._truncated = {xid for xid in self._truncated if _any(visibility, {xid})}
        self._altered = {xid for xid in self._altered if _any(visibility, {xid})}

    def _add(self, xids: NDArray[np.int64], keys: pa.Array[Any], unsent: NDArray[np.bool_]) -> None:
        self._xids.append(xids)
        self._keys.append(keys)
        self._unsent.append(unsent)
        self.count += len(xids)

    def _combine(self) -> None:
        if len(self._xids) > 1:
            self._xids = [np.concatenate(self._xids)]
            self._keys = [pa.concat_arrays(self._keys)]
            self._unsent = [np.concatenate(self._unsent)]


def _any(visibility: Visibility, xids: set[int]) -> bool:
    return bool(xids) and bool(visibility.hides(np.array(sorted(xids), np.int64)).any())


def _unsent(rows: pa.RecordBatch, shape: Shape) -> NDArray[np.bool_]:
    """Which rows came without some of their values; a full old row has what the new one lacks."""
    if shape.replica_identity == "f":
        return np.zeros(rows.num_rows, np.bool_)
    flags: NDArray[np.bool_] = rows.column("unchanged").is_valid().to_numpy(zero_copy_only=False)
    return flags
