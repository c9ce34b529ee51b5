"""A large file on its way to a local disk, past the memory in which the system keeps files.

Copying into that memory costs more time than anything else about writing, and pushes out of it
what a source on the same machine needs. Full buffers are written directly, by a thread, while
the next one fills; what is left at the end goes the usual way, and so does everything where the
file system knows no other. Nothing is durable before it is synced.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

# A power of two, since places in the file and sizes have to fit the blocks of any disk.
BUFFER_BYTES = 1 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # not everywhere


class DirectFile:
    """A new file, written from its beginning to its end by one thread."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=0, opener=_open)  # noqa: SIM115
        self._buffer, self._spare = (
            mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE) for _ in range(2)
        )
        self._used = 0  # of the buffer
        self._flushed = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="pgtide-write")
        self._writing: Future[None] | None = None

    def tell(self) -> int:
        """Bytes so far."""
        return self._flushed + self._used

    def write(self, data: Any) -> None:
        """Append bytes; raises OSError, also for what was written before."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            piece = view[: BUFFER_BYTES - self._used]
            self._buffer[self._used : self._used + piece.nbytes] = piece
            self._used += piece.nbytes
            view = view[piece.nbytes :]
            if self._used == BUFFER_BYTES:
                self._flush()

    def close(self) -> None:
        """Write what is left; raises OSError, and is closed all the same."""
        try:
            self._wait()
            _usual(self._file.fileno())
            _write_all(self._file, memoryview(self._buffer)[: self._used])
        finally:
            self._writer.shutdown()
            self._file.close()

    def _flush(self) -> None:
        self._wait()
        self._writing = self._writer.submit(_write_all, self._file, memoryview(self._buffer))
        self._buffer, self._spare = self._spare, self._buffer
        self._flushed += self._used
        self._used = 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _open(path: str, flags: int) -> int:
    """Open for direct writing, where the file system knows that.

    Asked for it while it makes a file, one that does not refuses, and has made the file.
    """
    descriptor = os.open(path, flags, 0o666)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | _DIRECT)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            os.close(descriptor)
            raise
    return descriptor


def _write_all(file: Any, data: memoryview) -> None:
    while data.nbytes:
        try:
            written = file.write(data)
        except OSError as exc:
            if exc.errno != errno.EINVAL or not _usual(file.fileno()):
                raise
            continue
        data = data[written:]


def _usual(descriptor: int) -> bool:
    """Go on writing the usual way; False if that was so before."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
    return bool(flags & _DIRECT)
