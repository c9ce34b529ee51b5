"""How pages of a table are compressed: by rows, unless LZ4's own way makes them much smaller.

Long texts repeat themselves inside of one value. The first page of a table tells.
"""

from __future__ import annotations

import pyarrow as pa

from pgtide.snapshot import row_lz4
from pgtide.snapshot.text_page import TextPage

WORTH = 1.25  # by rows a page may be so many times as large: bytes cost time as well


class PageCodec:
    """Compresses pages of one table after the other."""

    def __init__(self) -> None:
        self._lz4 = pa.Codec("lz4_raw")
        self._by_rows: dict[int, bool] = {}  # by shape

    def compress(self, page: TextPage, shape: int) -> pa.Buffer:
        """A page of the table with that shape, as an LZ4 block."""
        by_rows = self._by_rows.get(shape)
        if by_rows is None:
            ours, theirs = row_lz4.compressed(page), self._lz4.compress(page.body)
            self._by_rows[shape] = by_rows = ours.size <= theirs.size * WORTH
            return ours if by_rows else theirs
        return row_lz4.compressed(page) if by_rows else self._lz4.compress(page.body)
