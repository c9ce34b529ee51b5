"""Which chunk of a table is to be read next, and up to where all are done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from pgtide.snapshot.key_chunks import Chunk, KeyedTable
from pgtide.snapshot.key_order import Key

FIRST_ROWS = 1_000  # of the first chunk: nobody knows yet how wide the rows are
GROWTH = 4  # from one chunk to the next, at most
CHUNK_BYTES = 4 << 20  # a chunk is to have about that many


class KeyPlan:
    """Ranges of a table in the order of its key, or requested keys; for several threads."""

    def __init__(
        self,
        table: KeyedTable,
        most_rows: int,
        *,
        keys: Sequence[Key] | None = None,
        place: Key | None = None,
    ) -> None:
        """``place``: the last key that is done; of requested keys, how many are."""
        self._lock = threading.Lock()
        self._table = table
        self._most_rows = most_rows
        self._rows = min(FIRST_ROWS, most_rows)
        self._keys = keys
        self._next = int(place[0]) if keys is not None and place else 0
        self._low = place
        self._ended = False  # the last range has been planned
        self._order: deque[Chunk] = deque()  # planned and not yet done, in order
        self._finished: set[Chunk] = set()
        self._again: deque[Chunk] = deque()
        self._single: dict[Key, None] = {}
        self.key_width = len(table.layout().keys)
        self.place = place

    def next_chunk(self) -> Chunk | None:
        """Parts that failed, then keys that are wanted once more, then what comes next."""
        with self._lock:
            if self._again:
                return self._again.popleft()
            if self._single:
                keys = tuple(self._single)[: self._most_rows]
                for key in keys:
                    del self._single[key]
                return Chunk(keys=keys)
            chunk = self._next_range() if self._keys is None else self._next_keys(self._keys)
            if chunk is not None:
                self._order.append(chunk)
            return chunk

    def again(self, chunk: Chunk) -> None:
        """A chunk has to be read again."""
        with self._lock:
            self._again.append(chunk)

    def once_more(self, key: Key) -> None:
        """A key has to be read by itself."""
        with self._lock:
            self._single[key] = None

    def split(self, chunk: Chunk) -> None:
        """A chunk is too large: read it in parts."""
        with self._lock:
            rows = max(1, self.expected_rows(chunk) // GROWTH)
            self._rows = min(self._rows, rows)
            parts = self._parts(chunk, rows)
            if chunk in self._order:
                at = self._order.index(chunk)
                del self._order[at]
                for part in reversed(parts):
                    self._order.insert(at, part)
            self._again.extend(parts)

    def measured(self, rows: int, size: int) -> None:
        """A chunk that was read had so many rows and bytes: the next ones may be larger."""
        with self._lock:
            if rows:
                fitting = max(1, CHUNK_BYTES * rows // max(size, 1))
                self._rows = min(self._most_rows, GROWTH * self._rows, fitting)

    def done(self, chunk: Chunk) -> None:
        """A chunk is in the log."""
        with self._lock:
            if chunk in self._order:  # and not one of keys that are wanted once more
                self._finished.add(chunk)
            while self._order and self._order[0] in self._finished:
                first = self._order.popleft()
                self._finished.discard(first)
                if first.keys is not None:
                    self.place = (str((int(self.place[0]) if self.place else 0) + len(first.keys)),)
                elif first.high is not None:
                    self.place = first.high

    def expected_rows(self, chunk: Chunk) -> int:
        """About how many rows a chunk has."""
        return chunk.rows if chunk.keys is None else len(chunk.keys)

    def is_single(self, chunk: Chunk) -> bool:
        """Whether a chunk cannot be divided any more."""
        return self.expected_rows(chunk) == 1

    def _next_range(self) -> Chunk | None:
        if self._ended:
            return None
        low = self._low
        self._low = self._table.boundary(low, self._rows)
        self._ended = self._low is None
        return Chunk(low, self._low, rows=self._rows)

    def _next_keys(self, keys: Sequence[Key]) -> Chunk | None:
        part = tuple(keys[self._next : self._next + self._rows])
        self._next += len(part)
        return Chunk(keys=part) if part else None

    def _parts(self, chunk: Chunk, rows: int) -> list[Chunk]:
        if chunk.keys is not None:
            middle = (len(chunk.keys) + 1) // 2
            return [Chunk(keys=half) for half in (chunk.keys[:middle], chunk.keys[middle:]) if half]
        middle_key = self._table.boundary(chunk.low, rows)
        if middle_key is None or middle_key == chunk.high:
            return [replace(chunk, rows=rows)]
        rest = max(1, chunk.rows - rows)
        return [Chunk(chunk.low, middle_key, rows=rows), Chunk(middle_key, chunk.high, rows=rest)]
