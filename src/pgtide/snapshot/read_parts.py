"""Pages of rows that were read as parts of the log, in memory that does not grow with them."""

from __future__ import annotations

from typing import Any

from deltalake.transaction import AddAction

from pgtide.log.datafile import merged_statistics
from pgtide.log.parts import ROW_GROUP_BYTES, ROW_GROUP_ROWS, Part
from pgtide.log.storage import Storage
from pgtide.snapshot.page_codec import PageCodec
from pgtide.snapshot.read_rows_file import ReadRowsFile, SameRows
from pgtide.snapshot.text_page import TextPage

FILE_BYTES = 32 << 20  # compressed, at which the next file begins


class ReadParts:
    """Rows of one day, in order, as files of about ``FILE_BYTES``."""

    def __init__(self, changes: Storage) -> None:
        self._changes = changes
        self._codec = PageCodec()
        self._part: Part | None = None
        self._file: ReadRowsFile | None = None
        self._statistics: dict[str, Any] | None = None
        self._done: list[AddAction] = []

    def add(self, page: TextPage, same: SameRows, seq: int) -> None:
        """Take rows, the next one of a table at ``seq``; they are on disk after ``finish``."""
        file = self._open(same)
        if file.group_rows + page.rows > ROW_GROUP_ROWS or file.group_bytes >= ROW_GROUP_BYTES:
            self.end_group(same, seq)
            self.end_file(FILE_BYTES)
            file = self._open(same)
        file.add(page, self._codec.compress(page, same.shape))

    def end_group(self, same: SameRows, seq: int) -> None:
        """Begin a new row group with the next rows; ``seq``: of the first of them."""
        file = self._file
        if file is None or not file.group_rows:
            return
        n = file.group_rows
        self._statistics = merged_statistics(self._statistics, same.statistics(seq - n, n))
        file.end_group(same, seq - n)

    def end_file(self, least: int) -> None:
        """Begin a new file with the next rows, if this one has that many bytes."""
        if self._file is None or self._file.size < least:
            return
        assert self._part is not None
        assert self._statistics is not None
        self._file.close()
        self._done.append(self._part.save(self._statistics))
        self._part = self._file = self._statistics = None

    def finish(self) -> list[AddAction]:
        """Write what is left; all the files."""
        self.end_file(0)
        done, self._done = self._done, []
        return done

    def _open(self, same: SameRows) -> ReadRowsFile:
        if self._file is None:
            self._part = Part(self._changes, same.read_at.date(), directly=True)
            self._file = ReadRowsFile(self._part.sink)
        return self._file
